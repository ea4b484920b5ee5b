"""Moving checkpoint files from a server to this machine.

Constant memory, several files at once, continued after a cut, checked when complete. Knows URLs
and folders; what a checkpoint is, the commands know.
"""
