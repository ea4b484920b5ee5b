"""Hosting: a server in a terminal or inside another process, and what it asks of the system."""
