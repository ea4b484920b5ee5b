"""Traces: what a session's requests took, in the form that Perfetto opens."""
