"""The commands, one module or package per group; `tinkex.cli.table` says which is where."""
