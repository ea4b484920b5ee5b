"""The `tinkex billing` commands."""
