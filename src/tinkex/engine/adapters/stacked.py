"""A served adapter's factors in the form in which training has them: stacked over layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tinkex.engine.adapters.layout import AdapterWeights, Factors
from tinkex.engine.model.slots import PlacedSlot


def stacked_factors(
    weights: AdapterWeights, slots: Mapping[str, PlacedSlot], device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Factors]:  # fmt: skip
    """By slot, for those of which any module is there; modules that are not have zeros."""
    found = {}
    for name, placed in slots.items():
        modules = [module for module, _ in placed.slot.modules]
        if any((layer, module) in weights.factors for layer in placed.layers for module in modules):
            found[name] = _stacked(weights, placed, device, dtype)
    return found


def _stacked(
    weights: AdapterWeights, placed: PlacedSlot, device: torch.device, dtype: torch.dtype
) -> Factors:
    slot, depth, rank = placed.slot, len(placed.layers), weights.rank
    a = torch.zeros(depth, len(slot.modules), rank, slot.in_features, device=device, dtype=dtype)
    b = [torch.zeros(depth, out, rank, device=device, dtype=dtype) for _, out in slot.modules]
    for place, layer in enumerate(placed.layers):
        for index, (module, _) in enumerate(slot.modules):
            pair = weights.factors.get((layer, module))
            if pair is not None:
                a[place, index].copy_(pair[0])
                b[index][place].copy_(pair[1])
    places = {layer: place for place, layer in enumerate(placed.layers)}
    return Factors(a.flatten(1, 2), tuple(b), places)


def nbytes(factors: Mapping[str, Factors]) -> int:
    tensors: list[Tensor] = [t for own in factors.values() for t in (own.a, *own.b)]
    return sum(tensor.nbytes for tensor in tensors)
