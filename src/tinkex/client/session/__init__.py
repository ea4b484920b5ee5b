"""A session: its heartbeat, what it submits, and the polls for the results."""
