"""Transports: a network, a server in this process, a forked child, a script."""
