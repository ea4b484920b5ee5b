"""Puts logging back as it was, for tests of code that owns the whole process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("tinkex")
    before = (root.handlers[:], root.level, ours.level)
    try:
        yield
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        ours.setLevel(before[2])
