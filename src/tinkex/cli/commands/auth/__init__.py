"""The `tinkex auth` commands."""
