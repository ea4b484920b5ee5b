"""One module per noun. A route parses, calls one service function, encodes."""
