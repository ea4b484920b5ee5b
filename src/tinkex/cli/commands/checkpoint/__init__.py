"""The `tinkex checkpoint` commands."""
