"""Tenants: their keys, their sessions, what they use and what is theirs."""
