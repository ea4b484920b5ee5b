"""Slots: the places of a model where an adapter may add a low-rank product, named once.

A slot is one fused matrix product of a layer. Blocks say which they have; where their factors lie
in an adapter's vector is `adapters`' business. Knows nothing of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["attention", "mlp", "unembed"]
"""What a user switches on or off as a whole."""

PARTS: tuple[Part, ...] = ("attention", "mlp", "unembed")

UNEMBED = "lm_head"
UNEMBED_LAYER = -1


@dataclass(frozen=True, slots=True)
class Slot:
    """`modules` are (path within the layer, output width), their columns side by side in the
    product's output."""

    part: Part
    in_features: int
    modules: tuple[tuple[str, int], ...]
    experts_a: int = 0
    """If not 0, each of so many experts has an A of its own; else one A serves all."""
    experts_b: int = 0
    """The same of B."""

    @property
    def of_experts(self) -> bool:
        return bool(self.experts_a or self.experts_b)

    def factor_shapes(self, out: int, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the A and the B of a module of this output width, as they are stored."""
        if not self.of_experts:
            return (rank, self.in_features), (out, rank)
        return (self.experts_a or 1, rank, self.in_features), (self.experts_b or 1, out, rank)


@dataclass(frozen=True, slots=True)
class PlacedSlot:
    """A slot and the layers that have it, in order."""

    slot: Slot
    layers: tuple[int, ...]
