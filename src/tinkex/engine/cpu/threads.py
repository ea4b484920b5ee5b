"""How many threads torch uses for each piece of its CPU work.

Waking threads for little work costs more than they compute. No result may depend on their number: a
sum that is split between threads is rounded differently from one that is not. Torch splits a row
only when there is no other row for a thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

_LARGE_MODEL = 8_000_000
"""Parameters from which even one token is worth all threads: its matrices take long to read."""

_LARGE_PASS = 400_000_000
"""Parameters times tokens from which a pass of a smaller model is worth two threads, which give the
bits that one gives: benchmarks/engine_tenants. Of more that is not so on every processor."""

_SHARE = 32_768
"""Elements that torch leaves to one thread."""

VECTOR = 32
"""Elements that torch takes at once. What is left over after whole vectors it computes one by one,
and its sigmoid is then rounded otherwise."""


def threads_for(parameters: int, tokens: int) -> int:
    """How many threads a pass of so many tokens is worth."""
    available = torch.get_num_threads()
    if parameters >= _LARGE_MODEL:
        return available
    return min(2, available) if parameters * tokens >= _LARGE_PASS else 1


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, torch uses `count` threads. Takes about a microsecond."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def leaves_uncut(x: Tensor) -> bool:
    """Whether elementwise work on so little is left to one thread."""
    return x.numel() <= _SHARE


@contextlib.contextmanager
def uncut_vectors(x: Tensor) -> Iterator[None]:
    """Inside, elementwise work on the shape [rows, width] of `x` is cut between whole vectors only:
    where a row's vectors end does not depend on how many rows there are."""
    if leaves_uncut(x):
        yield
        return
    rows, width = x.shape
    count = min(torch.get_num_threads(), -(-rows * width // _SHARE))
    while count > 1 and not _cuts_well(-(-rows * width // count), width):
        count -= 1
    with threads(count):
        yield


def _cuts_well(share: int, width: int) -> bool:
    return share % width == 0 or share % VECTOR == width % VECTOR == 0


def logsumexp(rows: Tensor) -> Tensor:
    """Of each row. The same bits alone and among others: torch would cut a single long row up."""
    if len(rows) > 1 or rows.device.type != "cpu":
        return rows.logsumexp(-1)
    with threads(1):
        return rows.logsumexp(-1)
