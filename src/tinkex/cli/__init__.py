"""The `tinkex` command: what a person types.

This floor talks to servers only through the public SDK, and starts the embedded server or
`tinkex serve` only through their front doors. Nothing here is imported by any other floor, and
importing this package loads nothing else.
"""
