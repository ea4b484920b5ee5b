"""Which part of an adapter's vector a rank holds, and what ranks must tell each other about it.

A factor lies like the matrix it adapts: cut by rows or by columns where that is, else whole on
every rank. A whole factor of a cut matrix gets its gradient in shares, which are summed. Where one
device has the whole model there is nothing to say, and `Whole` says it at no cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from tinkex.engine.model.config import Shard
from tinkex.engine.model.slots import UNEMBED

if TYPE_CHECKING:
    from tinkex.engine.adapters.layout import AdapterLayout


class Shares(Protocol):
    """Of vectors of one layout."""

    def complete(self, gradient: Tensor) -> None:
        """Make a gradient, of which each rank has computed its share, that of the whole."""
        ...

    def norm(self, vector: Tensor) -> Tensor:
        """Of the whole vector."""
        ...

    def largest(self, vector: Tensor) -> float:
        """The largest absolute value of the whole vector; NaN where one is."""
        ...

    def joined(self, vector: Tensor) -> Tensor:
        """The whole vector; perhaps the one given."""
        ...

    def own(self, whole: Tensor) -> Tensor:
        """This rank's part of a whole vector; perhaps the one given."""
        ...

    def pieces(self) -> Sequence[slice]:
        """Pieces whose lengths `length` puts together."""
        ...

    def length(self, lengths: Sequence[Tensor]) -> float:
        """The norm of the whole vector from those of this rank's pieces."""
        ...


class Whole:
    def complete(self, gradient: Tensor) -> None:
        pass

    def norm(self, vector: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(vector)
        return norm

    def largest(self, vector: Tensor) -> float:
        return float(vector.abs().max())

    def joined(self, vector: Tensor) -> Tensor:
        return vector

    def own(self, whole: Tensor) -> Tensor:
        return whole

    def pieces(self) -> Sequence[slice]:
        return (slice(None),)

    def length(self, lengths: Sequence[Tensor]) -> float:
        (only,) = lengths
        return float(only)


class Sharded:
    def __init__(self, layout: AdapterLayout, whole: AdapterLayout, shard: Shard) -> None:
        self._layout, self._whole, self._shard = layout, whole, shard
        shapes = zip(layout.shapes(), whole.shapes(), strict=True)
        self._axes = [longer_axis(own, full) for (_, own), (_, full) in shapes]
        self._names = [slot for slot, _ in layout.shapes()]

    def complete(self, gradient: Tensor) -> None:
        from tinkex.engine import collectives

        named = zip(self._layout.views(gradient), self._axes, self._names, strict=True)
        # The unembedding is whole on every rank, and so are its adapters' gradients.
        parts = [view for view, axis, name in named if axis is None and name != UNEMBED]
        if not parts:
            return
        summed = collectives.add_up(torch.cat([part.flatten() for part in parts]))
        sizes = [part.numel() for part in parts]
        for part, total in zip(parts, summed.split_with_sizes(sizes), strict=True):
            part.copy_(total.view_as(part))

    def norm(self, vector: Tensor) -> Tensor:
        lengths = [torch.linalg.vector_norm(vector[piece]) for piece in self.pieces()]
        return self._length(lengths).to(vector.dtype)

    def largest(self, vector: Tensor) -> float:
        from tinkex.engine import collectives

        return collectives.largest(float(vector.abs().max()))

    def joined(self, vector: Tensor) -> Tensor:
        from tinkex.engine import collectives

        shares = collectives.every_share(vector, self._shard.size)
        found = []
        by_view = zip(*(self._layout.views(share) for share in shares), strict=True)
        for axis, parts in zip(self._axes, by_view, strict=True):
            found.append((parts[0] if axis is None else torch.cat(parts, dim=axis)).flatten())
        return torch.cat(found)

    def own(self, whole: Tensor) -> Tensor:
        views = zip(self._axes, self._whole.views(whole), strict=True)
        return torch.cat([cut(view, axis, self._shard).flatten() for axis, view in views])

    def pieces(self) -> Sequence[slice]:
        found, start = [], 0
        for _, shape in self._layout.shapes():
            stop = start + math.prod(shape)
            found.append(slice(start, stop))
            start = stop
        return found

    def length(self, lengths: Sequence[Tensor]) -> float:
        return float(self._length(lengths))

    def _length(self, lengths: Sequence[Tensor]) -> Tensor:
        """What all ranks have is counted once, by the first."""
        from tinkex.engine import collectives

        counted = [
            length
            for length, axis in zip(lengths, self._axes, strict=True)
            if axis is not None or self._shard.rank == 0
        ]
        squares = torch.stack(counted).double().square().sum()
        return collectives.add_up(squares).sqrt()


def longer_axis(own: Sequence[int], whole: Sequence[int]) -> int | None:
    """The axis along which a rank has only a part; None where it has all."""
    return next((i for i, (a, b) in enumerate(zip(own, whole, strict=True)) if a != b), None)


def cut(whole: Tensor, axis: int | None, shard: Shard) -> Tensor:
    return whole if axis is None else whole.chunk(shard.size, dim=axis)[shard.rank]
