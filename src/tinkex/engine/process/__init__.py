"""The engine as a process: commands in, training and sampling in turns, events out."""
