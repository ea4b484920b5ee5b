"""The commands, one module or package per group; `tinkex.cli.line.table` says which is where."""
