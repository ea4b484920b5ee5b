"""Keeps freed memory for the next request instead of giving it back to the system every time.

A body of a megabyte would else cost hundreds of page faults, again and again. Only the command that
owns the process calls it.
"""

from __future__ import annotations

from tinkex.engine.process import allocator

MIB = 1024 * 1024
KEPT_BYTES = 16 * MIB
"""So much may stay with each thread that allocates; more goes back to the system."""
SHARED_BYTES = 4 * MIB
"""What is larger is mapped for itself, and goes back as soon as it is freed."""


def keep_freed_memory() -> None:
    allocator.keep_freed_memory(KEPT_BYTES, SHARED_BYTES)
