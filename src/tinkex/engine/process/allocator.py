"""Keeps freed memory for what is allocated next instead of giving it back to the system every time.

A training step allocates the same tensors again and again: pages that went back in between cost a
twentieth of a small model's step to get anew. Speaks to the C library of Linux and does nothing
elsewhere; only what owns its process calls it. Child processes do not inherit it.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

_MIB = 1024 * 1024
KEPT_BYTES = 256 * _MIB
"""So much an engine keeps."""
SHARED_BYTES = 32 * _MIB
"""What is larger is mapped for itself; glibc takes no larger limit."""


def keep_freed_memory(kept: int = KEPT_BYTES, shared: int = SHARED_BYTES) -> None:
    """Keep up to `kept` bytes, of pieces of up to `shared` bytes."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # another C library than glibc may have none
        mallopt(_TRIM_THRESHOLD, kept)
        mallopt(_MMAP_THRESHOLD, shared)
