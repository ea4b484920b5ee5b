"""Tenants: their keys, their sessions, their usage and what they own."""
