"""How many threads torch spreads its CPU work over, decided piece by piece.

Waking threads for little work costs more than they compute. No number may depend on how many there
are: a sum that is cut between threads is rounded otherwise than one that is not, and torch cuts a
row only when there is no other row to hand to a thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

_LARGE_MODEL = 8_000_000
"""Parameters from which even one token is worth all threads: its matrices take long to read."""

_LARGE_PASS = 400_000_000
"""Parameters times tokens from which a pass of a smaller model is: benchmarks/engine_tenants."""


def threads_for(parameters: int, tokens: int) -> int:
    """How many threads a pass of so many tokens is worth: one, or all that torch may use."""
    if parameters < _LARGE_MODEL and parameters * tokens < _LARGE_PASS:
        return 1
    return torch.get_num_threads()


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
