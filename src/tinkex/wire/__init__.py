"""The protocol, once, for both sides: bytes on one end, values of `tinkex.types` on the other.

Nothing here opens a connection, waits, or keeps state.
"""
