"""PostgreSQL: the database of a team, with a lease that says which server works with it."""
