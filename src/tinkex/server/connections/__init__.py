"""Connections: how the application meets its sockets, and how HTTP/1.1 is read from them."""
