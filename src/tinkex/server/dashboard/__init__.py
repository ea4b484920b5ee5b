"""The dashboard: the page a browser gets at `/`, and how one signs in to it."""
