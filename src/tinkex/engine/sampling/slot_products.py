"""An adapter's low-rank products in a step: a slot's modules joined, or each as it is in its file.

On a GPU, and for small adapters, the modules of a slot are laid side by side, so that a step makes
few products. On a CPU, large ones are used as they are in their file: laying them out would take
most of the time to a first answer, and a step would read the zeros between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.model.slots import PlacedSlot, Slot

LARGE_BYTES = 16 << 20
"""Bytes of an adapter's factors from which they are used as they lie. About where a step of
SmolLM2, whose adapters of rank 16 are 20 MB, takes as long either way: beyond it, zeros next to the
factors cost more than products do."""

Key: TypeAlias = tuple[int, str]
"""Layer and slot."""

Blocks: TypeAlias = tuple[tuple[int, int], ...]
"""For each of a slot's modules: the offset and the number of its ranks."""


class Part(NamedTuple):
    """What adds `scaling` · x @ a @ b to some columns of a slot's product."""

    a: Tensor  # A.T [in, r]
    b: Tensor  # B.T [r, columns]
    columns: slice = slice(None)
    scaling: float = 1.0  # that is not in b

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes


Products: TypeAlias = dict[Key, tuple[Part, ...]]


def side_by_side(
    weights: AdapterWeights, slots: Mapping[str, PlacedSlot], device: torch.device,
    dtype: torch.dtype, step: int,
) -> tuple[Products, dict[Key, Blocks]]:  # fmt: skip
    """One part for every slot without experts, and where its modules' ranks are in it. Ranks are
    padded to a multiple of `step`."""
    found: Products = {}
    blocks: dict[Key, Blocks] = {}
    for name, placed in slots.items():
        alike: dict[Blocks, list[int]] = {}
        for layer in () if placed.slot.of_experts else placed.layers:
            alike.setdefault(_blocks(weights, layer, placed.slot, step), []).append(layer)
        for ranks, layers in alike.items():
            if any(rank for _, rank in ranks):
                made = _joined(weights, layers, placed.slot, ranks, dtype)
                a, b = (part.to(device) for part in made)
                for depth, layer in enumerate(layers):
                    found[layer, name], blocks[layer, name] = (Part(a[depth], b[depth]),), ranks
    return found, blocks


def as_they_lie(
    weights: AdapterWeights, slots: Mapping[str, PlacedSlot]
) -> tuple[Products, dict[Key, Blocks]]:
    """A part for every module, with its own factors, for slots without experts."""
    found: Products = {}
    blocks: dict[Key, Blocks] = {}
    for name, placed in slots.items():
        for layer in () if placed.slot.of_experts else placed.layers:
            parts = tuple(_parts(weights, layer, placed.slot))
            if parts:
                found[layer, name] = parts
                blocks[layer, name] = _blocks(weights, layer, placed.slot, 1)
    return found, blocks


def is_large(weights: AdapterWeights) -> bool:
    return sum(a.nbytes + b.nbytes for a, b in weights.factors.values()) >= LARGE_BYTES


def _parts(weights: AdapterWeights, layer: int, slot: Slot) -> list[Part]:
    parts, column = [], 0
    for module, width in slot.modules:
        factors = weights.factors.get((layer, module))
        if factors is not None:
            a, b = factors
            parts.append(Part(a.mT, b.mT, slice(column, column + width), weights.scaling))
        column += width
    return parts


def _blocks(weights: AdapterWeights, layer: int, slot: Slot, step: int) -> Blocks:
    """Offset and rank of each of the slot's modules, ranks rounded up to a multiple of `step`."""
    blocks, offset = [], 0
    for module, _ in slot.modules:
        factors = weights.factors.get((layer, module))
        rank = 0 if factors is None else -(-factors[0].shape[0] // step) * step
        blocks.append((offset, rank))
        offset += rank
    return tuple(blocks)


def _joined(
    weights: AdapterWeights, layers: Sequence[int], slot: Slot, blocks: Blocks, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The slot's modules as one product for each layer: A's side by side, B's on the diagonal. On a
    GPU all layers in a few operations: each small one costs more to launch than to run. On a CPU
    one by one, straight to their places: what it takes is memory, and each pass over it counts."""
    ranks, widths = sum(rank for _, rank in blocks), [width for _, width in slot.modules]
    device = next(iter(weights.factors.values()))[0].device
    a = _blank((len(layers), slot.in_features, ranks), device, dtype)
    b = _blank((len(layers), ranks, sum(widths)), device, dtype)
    for index, ((module, width), (row, rank)) in enumerate(zip(slot.modules, blocks, strict=True)):
        if rank:
            pairs = [weights.factors[layer, module] for layer in layers]
            rows = slice(row, row + pairs[0][0].shape[0])
            column = sum(widths[:index])
            to_a, to_b = a[:, :, rows], b[:, rows, column : column + width]
            if device.type == "cpu":
                for depth, (down, up) in enumerate(pairs):
                    to_a[depth].copy_(down.mT)
                    torch.mul(up.mT, weights.scaling, out=to_b[depth])
            else:
                downs, ups = (torch.stack(factors) for factors in zip(*pairs, strict=True))
                to_a.copy_(downs.mT)
                to_b.copy_(ups.mul_(weights.scaling).mT)
    return a, b


def _blank(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros. On a CPU such as the system hands out, where torch would write its own over them."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    return (
        torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8))
        .view(dtype)
        .view(shape)
    )
