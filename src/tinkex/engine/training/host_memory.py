"""Host memory for what a device has no room for: blocks of one size, pinned on a GPU's host.

Pinning memory takes longer than copying it, so a pinned block is kept for the next use. Copies run
at the speed of the bus, in pieces of a few milliseconds: moving gigabytes must not delay another
run's small step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.pieces import Pieces

BLOCK = 16 << 20
"""Bytes of a block, a power of two: torch pins no other sizes without waste."""

_COPIED = 32
"""Blocks of a piece: 10 ms of a fast bus. One that has to be pinned first is a piece of its own."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A vector in the host's memory."""

    blocks: tuple[Tensor, ...]
    size: int
    dtype: torch.dtype


class HostMemory:
    """`budget` bounds the bytes of all blocks in use."""

    def __init__(self, device: torch.device, budget: int, block: int = BLOCK) -> None:
        self._device, self._block = device, block
        self.budget = budget
        self._spare: list[Tensor] = []
        self._used = 0

    @property
    def used(self) -> int:
        return self._used * self._block

    def needs(self, sizes: Iterator[int]) -> int:
        """Bytes that vectors of these sizes take."""
        return sum(-(-size // self._block) * self._block for size in sizes)

    def prepare(self, sizes: Iterator[int]) -> bool:
        """Pin one more block for vectors of so many bytes; False if that is done, or there is no
        room."""
        wanted = self.needs(sizes) // self._block
        full = self.used + (len(self._spare) + 1) * self._block > self.budget
        if len(self._spare) >= wanted or full:
            return False
        self._spare.append(self._pinned())
        return True

    def keep(self, vector: Tensor) -> Pieces[Kept]:
        """A copy of a flat vector, complete when this returns."""
        width = self._block // vector.element_size()
        blocks: list[Tensor] = []
        try:
            for _ in range(0, len(vector), width):
                fresh = not self._spare
                blocks.append(self._take())
                if fresh:
                    yield
            kept = Kept(tuple(blocks), len(vector), vector.dtype)
            for part, start in self._parts(kept):
                part.copy_(vector[start : start + len(part)], non_blocking=True)
                yield from self._pause(start // width)
        except BaseException:
            self._give(blocks)
            raise
        self._wait()
        return kept

    def bring(self, kept: Kept) -> Pieces[Tensor]:
        """The vector on the device again. Its blocks are free once `free` says so."""
        vector = torch.empty(kept.size, dtype=kept.dtype, device=self._device)
        for number, (part, start) in enumerate(self._parts(kept)):
            vector[start : start + len(part)].copy_(part, non_blocking=True)
            yield from self._pause(number)
        self._wait()
        return vector

    def free(self, kept: Kept) -> None:
        self._give(kept.blocks)

    def _parts(self, kept: Kept) -> Iterator[tuple[Tensor, int]]:
        """Each block up to where it is filled, and its offset in the vector."""
        start = 0
        for block in kept.blocks:
            part = block.view(kept.dtype)[: kept.size - start]
            yield part, start
            start += len(part)

    def _take(self) -> Tensor:
        self._used += 1
        return self._spare.pop() if self._spare else self._pinned()

    def _give(self, blocks: Sequence[Tensor]) -> None:
        self._spare.extend(blocks)
        self._used -= len(blocks)

    def _pause(self, copied: int) -> Pieces[None]:
        """After so many blocks, let others have a turn, with no copy of this one under way."""
        if copied % _COPIED == _COPIED - 1:
            self._wait()
            yield

    def _pinned(self) -> Tensor:
        return torch.empty(self._block, dtype=torch.uint8, pin_memory=self._device.type == "cuda")

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
