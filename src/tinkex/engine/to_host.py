"""Copies a device's numbers to the host while other work is queued there.

A plain copy from a GPU waits for everything queued before it and delays everything after it. This
one waits for a mark, on a stream of its own, in pieces through pinned memory.
"""

from __future__ import annotations

import threading
from functools import cache

import torch
from torch import Tensor

PIECE = 16 << 20
"""Bytes of pinned memory for each of two pieces: one is on its way while the other is taken."""


def mark(device: torch.device) -> torch.cuda.Event | None:
    """The present end of the device's queue: what is queued so far is what a copy has to see."""
    if device.type != "cuda":
        return None
    made = torch.cuda.Event()
    made.record()
    return made


def to_host(tensor: Tensor, after: torch.cuda.Event | None) -> Tensor:
    """The tensor as it was at the mark, in the host's memory; waits for it. Any thread may ask."""
    if after is None:
        return tensor
    flat = tensor.detach().reshape(-1)
    found = torch.empty(flat.shape, dtype=flat.dtype)
    _lane(tensor.device).carry(flat, found, after)
    return found.view(tensor.shape)


class _Lane:
    """A stream and the pinned memory beside it, for one copy at a time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._stages = [torch.empty(PIECE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._turn = threading.Lock()

    def carry(self, source: Tensor, target: Tensor, after: torch.cuda.Event) -> None:
        size = PIECE // source.element_size()
        starts = range(0, len(source), size)
        pairs = [(source[at : at + size], target[at : at + size]) for at in starts]
        with self._turn, torch.cuda.stream(self._stream):
            self._stream.wait_event(after)
            arrivals = [self._begin(index, piece) for index, (piece, _) in enumerate(pairs[:1])]
            for index, (_, into) in enumerate(pairs):
                if index + 1 < len(pairs):
                    arrivals.append(self._begin(index + 1, pairs[index + 1][0]))
                arrivals[index].synchronize()
                into.copy_(self._stage(index, into))

    def _begin(self, index: int, piece: Tensor) -> torch.cuda.Event:
        self._stage(index, piece).copy_(piece, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return arrived

    def _stage(self, index: int, like: Tensor) -> Tensor:
        return self._stages[index % 2][: like.nbytes].view(like.dtype)


@cache
def _lane(device: torch.device) -> _Lane:
    return _Lane(device)
