"""Keeps freed memory for the next request instead of giving it back to the system every time.

A body of a megabyte would else cost hundreds of page faults, again and again. Speaks to the C
library of Linux and does nothing elsewhere; only the command that owns the process calls it.
"""

from __future__ import annotations

import ctypes
import sys

MIB = 1024 * 1024
KEPT_BYTES = 16 * MIB
"""Freed bytes that may stay with each allocating thread; more goes back to the system."""
SHARED_BYTES = 4 * MIB
"""Larger pieces are mapped separately, and go back as soon as they are freed."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # another C library than glibc may have none
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, SHARED_BYTES)
