"""Sums on the CPU that do not depend on how torch spreads them over threads.

A sum that is cut between threads is rounded otherwise than one that is not, and torch cuts a row
only when there is no other row to hand to a thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, torch uses `count` threads. Takes about a microsecond."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def logsumexp(rows: Tensor) -> Tensor:
    """Of each row. The same bits alone and among others: torch would cut a single long row up."""
    if len(rows) > 1 or rows.device.type != "cpu":
        return rows.logsumexp(-1)
    with threads(1):
        return rows.logsumexp(-1)
