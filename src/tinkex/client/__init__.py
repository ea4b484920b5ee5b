"""The SDK: one async core on a background loop, with the clients that users call on top of it."""
