"""The `tinkex run` commands."""
