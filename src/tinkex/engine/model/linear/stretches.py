"""Where sequences, or pieces of them, begin and end in a pack of tokens, for what runs along them.

A recurrence is computed in chunks. Each stretch is cut into chunks of a length that only its own
length decides, so that nobody's numbers depend on who else is in the pack. Chunks of all stretches
lie in one tensor, those that come first in their stretches in front: step i of the recurrence is
then one slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.to_device import to_device

CHUNKS = (32, 64)
"""Lengths of chunks. A stretch gets the first that it fits into, or the last."""


@dataclass(frozen=True, slots=True)
class ChunkedStretches:
    """The stretches of one chunk length.

    `members` are their numbers, longest first. Token `tokens[i]` of the pack lies at `places[i]` of
    [chunks · chunk]. Step i of the recurrence takes chunks [bounds[i], bounds[i + 1]), one of each
    of the first so many members.
    """

    chunk: int
    members: Tensor
    tokens: Tensor
    places: Tensor
    bounds: tuple[int, ...]


class Stretches:
    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.lengths = tuple(lengths)
        self.tokens = sum(lengths)
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        offsets = [np.arange(length) for length in lengths]
        self.offsets = to_device(np.concatenate(offsets), device)
        """Each token's place in its stretch."""
        self.single = all(length == 1 for length in lengths)
        self.first = to_device(self.starts[:-1], device)
        """Each stretch's first token."""
        self._device = device
        self._chunked: list[ChunkedStretches] | None = None

    def longer_than(self, length: int) -> Tensor:
        """The numbers of the stretches with more tokens than this."""
        return to_device(np.flatnonzero(np.array(self.lengths) > length), self._device)

    @property
    def chunked(self) -> list[ChunkedStretches]:
        """By chunk length, made when first asked for."""
        if self._chunked is None:
            sizes = np.array([_chunk_of(length) for length in self.lengths])
            present = [size for size in CHUNKS if (sizes == size).any()]
            self._chunked = [self._cut(size, np.flatnonzero(sizes == size)) for size in present]
        return self._chunked

    def _cut(self, chunk: int, members: NDArray[np.int64]) -> ChunkedStretches:
        lengths = np.array(self.lengths)[members]
        order = np.argsort(-lengths, kind="stable")
        members, lengths = members[order], lengths[order]
        steps = -(-lengths // chunk)
        counts = [int((steps > step).sum()) for step in range(int(steps[0]))]
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        tokens, places = [], []
        for rank, (member, length) in enumerate(zip(members, lengths, strict=True)):
            within = np.arange(length)
            tokens.append(self.starts[member] + within)
            places.append((bounds[within // chunk] + rank) * chunk + within % chunk)
        return ChunkedStretches(
            chunk,
            to_device(members, self._device),
            to_device(np.concatenate(tokens), self._device),
            to_device(np.concatenate(places), self._device),
            tuple(bounds.tolist()),
        )


def _chunk_of(length: int) -> int:
    return next((size for size in CHUNKS if length <= size), CHUNKS[-1])
