"""Forward and backward passes as bytes: the request written and read, its result, a JSON form."""
