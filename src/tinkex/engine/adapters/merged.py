"""Adapters merged into the matrices of a small model, for steps in which nobody uses another one.

Two more products beside each frozen one are a third of a small model's step. Who samples from one
adapter for a while gets its sum with the frozen matrices; a large model's matrices are too much to
keep twice, and there the products are the lesser part.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

Place: TypeAlias = tuple[int, str]
"""Layer and slot."""

MAX_BYTES = 64 << 20
"""Of all that are kept."""

_USES = 16
"""Passes with nobody else after which it is worth it: merging takes as long as a few of them."""


class MergedWeights:
    """Sums of adapters and frozen matrices, the least recently used let go first."""

    def __init__(self, weights: Mapping[Place, Tensor]) -> None:
        self._weights = weights
        nbytes = sum(weight.nbytes for weight in weights.values())
        self._room = MAX_BYTES // max(1, nbytes)
        self._kept: OrderedDict[tuple[int, int], dict[Place, Tensor]] = OrderedDict()
        self._alone: tuple[tuple[int, int], int] = ((0, 0), 0)

    def of(
        self, identity: tuple[int, int], factors: Mapping[Place, tuple[Tensor, Tensor]]
    ) -> Mapping[Place, Tensor] | None:
        """The merged matrices of the adapter that all rows of a pass use; None if it has not been
        used for long. Factors are A.T [in, rank] and scaled B.T [rank, out]."""
        if identity in self._kept:
            self._kept.move_to_end(identity)
            return self._kept[identity]
        used = self._alone[1] + 1 if self._alone[0] == identity else 1
        self._alone = identity, used
        if used < _USES or not self._room:
            return None
        while len(self._kept) >= self._room:
            self._kept.popitem(last=False)
        self._kept[identity] = {
            place: self._weights[place].addmm(b.T, a.T) for place, (a, b) in factors.items()
        }
        return self._kept[identity]
