"""The host's memory for what a device has no room for: blocks of one size, pinned on a GPU's host.

Pinning memory takes longer than copying it, so a block that was pinned is kept for whoever comes
next. Copies go at the speed of the bus between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 16 << 20
"""Bytes of a block, a power of two: torch pins no other sizes without waste."""


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
        """What vectors of so many bytes each take."""
        return sum(-(-size // self._block) * self._block for size in sizes)

    def prepare(self, sizes: Iterator[int]) -> bool:
        """Pin one more block for vectors of so many bytes; False if that is done, or no room."""
        wanted = self.needs(sizes) // self._block
        full = self.used + (len(self._spare) + 1) * self._block > self.budget
        if len(self._spare) >= wanted or full:
            return False
        self._spare.append(self._pinned())
        return True

    def keep(self, vector: Tensor) -> Kept:
        """A copy of a flat vector; the copy is made when this returns."""
        width = self._block // vector.element_size()
        blocks = tuple(self._take() for _ in range(0, len(vector), width))
        kept = Kept(blocks, len(vector), vector.dtype)
        for part, start in self._parts(kept):
            part.copy_(vector[start : start + len(part)], non_blocking=True)
        self._wait()
        return kept

    def bring(self, kept: Kept) -> Tensor:
        """The vector on the device again; its blocks are free."""
        vector = torch.empty(kept.size, dtype=kept.dtype, device=self._device)
        for part, start in self._parts(kept):
            vector[start : start + len(part)].copy_(part, non_blocking=True)
        self._wait()
        self.free(kept)
        return vector

    def free(self, kept: Kept) -> None:
        self._spare.extend(kept.blocks)
        self._used -= len(kept.blocks)

    def _parts(self, kept: Kept) -> Iterator[tuple[Tensor, int]]:
        """Each block as far as it is filled, and where it begins in the vector."""
        start = 0
        for block in kept.blocks:
            part = block.view(kept.dtype)[: kept.size - start]
            yield part, start
            start += len(part)

    def _take(self) -> Tensor:
        self._used += 1
        return self._spare.pop() if self._spare else self._pinned()

    def _pinned(self) -> Tensor:
        return torch.empty(self._block, dtype=torch.uint8, pin_memory=self._device.type == "cuda")

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
