"""How results look: tables, numbers, bars. Values in, text out; knows no server."""
