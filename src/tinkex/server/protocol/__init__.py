"""The protocol's requests and results, between bytes and values. Knows no service."""
