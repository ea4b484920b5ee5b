"""Views: what people look up, as the JSON shapes of the protocol."""
