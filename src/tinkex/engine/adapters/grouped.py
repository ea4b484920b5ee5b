"""LoRA products of any mix of adapters in shared launches, by a table of where their factors lie.

What `PackedLora` does slice by slice, these kernels do for all segments at once, whatever their
ranks and modules: on a GPU eight tenants then cost as many launches as one. Needs Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.adapters.layout import Factors
from tinkex.engine.adapters.packed import PackedLora, Segment
from tinkex.engine.kernels import lora_table as kernel
from tinkex.engine.model.config import ModelConfig, slots
from tinkex.engine.model.slots import UNEMBED, PlacedSlot
from tinkex.engine.to_device import to_device


def table_slots(config: ModelConfig) -> dict[str, PlacedSlot]:
    """The slots whose products are made by table: not those of experts, nor the unembedding."""
    return {
        name: placed
        for name, placed in slots(config).items()
        if name != UNEMBED and not placed.slot.of_experts
    }


@dataclass(frozen=True, slots=True)
class Shape:
    """What kernels are compiled for: the power of two, 16 at least, that holds every rank, and
    whether all ranks and widths are multiples of 8."""

    rank: int
    aligned: bool

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Shape:
        every = [
            factors
            for segment in segments
            for factors in segment.factors.values()
            if factors.a.ndim == factors.b[0].ndim == 3
        ]
        ranks = [factors.b[0].shape[-1] for factors in every] or [1]
        widths = [width for f in every for width in (f.a.shape[-1], *(b.shape[-2] for b in f.b))]
        return cls(
            max(16, 1 << (max(ranks) - 1).bit_length()),
            all(number % 8 == 0 for number in (*ranks, *widths)),
        )


class LoraTable:
    """Where the adapters of some segments lie, on the device, in buffers that keep their place.

    `slots` are those of `table_slots`; `rows` and `groups` bound what can be filled in.
    """

    def __init__(
        self, slots: Mapping[str, PlacedSlot], rows: int, groups: int, device: torch.device
    ) -> None:
        self.widths = {
            name: tuple(width for _, width in placed.slot.modules) for name, placed in slots.items()
        }
        self.place = {name: _places(placed) for name, placed in slots.items()}
        self.index = {name: at for at, name in enumerate(slots)}
        tiles = -(-rows // kernel.ROWS) + groups - 1
        self._device, self._groups = device, groups
        self.table = torch.zeros(
            len(slots), groups, kernel.FIELDS, dtype=torch.int64, device=device
        )
        self.tiles = torch.zeros(tiles, 3, dtype=torch.int32, device=device)
        self.bounds = torch.zeros(groups, 2, dtype=torch.int32, device=device)
        self.counts = kernel.counters(tiles, device)

    def fill(self, segments: Sequence[Segment]) -> None:
        """Name these segments' adapters from the next launch on. Does not wait."""
        table = np.zeros(self.table.shape, np.int64)
        for group, segment in enumerate(segments):
            for name, at in self.index.items():
                table[at, group] = _row(segment, name)
        bounds = np.zeros((self._groups, 2), np.int32)
        bounds[: len(segments)] = [(s.start, s.stop) for s in segments]
        cut = [
            (group, first, s.stop)
            for group, s in enumerate(segments)
            for first in range(s.start, s.stop, kernel.ROWS)
        ]
        tiles = np.zeros(self.tiles.shape, np.int32)
        tiles[: len(cut)] = cut
        for target, values in ((self.table, table), (self.bounds, bounds), (self.tiles, tiles)):
            target.copy_(to_device(values, self._device))


class TableLora(PackedLora):
    """A `Lora` for the segments a table names, whose ranks `shape` allows."""

    def __init__(
        self, table: LoraTable, segments: Sequence[Segment], shape: Shape, device: torch.device
    ) -> None:
        super().__init__(segments, device)
        self.table, self.shape = table, shape

    def project(
        self, layer: int, slot: str, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        if torch.is_grad_enabled():
            apply: Any = _TableProject.apply
            result: Tensor = apply(x, self._anchor, weight, bias, self, layer, slot)
            return result
        y = F.linear(x, weight, bias)
        self.add_product(layer, slot, x, y)
        return y

    def add_product(self, layer: int, slot: str, x: Tensor, y: Tensor) -> Tensor:
        """Add every segment's product to `y`; returns A x."""
        table, layer, where = self._where(slot, layer)
        thin = kernel.shrink(x, table, self.table.tiles, self.table.counts, layer, *where, False)
        kernel.expand(y, thin, table, self.table.tiles, layer, *where, False)
        return thin

    def add_gradients(
        self, layer: int, slot: str, x: Tensor, thin: Tensor, dy: Tensor, dx: Tensor | None
    ) -> None:
        """Add to the factors' gradients and, unless None, to `dx`."""
        table, layer, where = self._where(slot, layer)
        tiles, bounds, counts = self.table.tiles, self.table.bounds, self.table.counts
        back = kernel.shrink(dy, table, tiles, counts, layer, *where, True)
        kernel.add_sums(dy, thin, table, bounds, layer, *where, False)
        kernel.add_sums(x, back, table, bounds, layer, *where, True)
        if dx is not None:
            kernel.expand(dx, back, table, tiles, layer, *where, True)

    def _where(
        self, slot: str, layer: int
    ) -> tuple[Tensor, int, tuple[tuple[int, ...], int, bool]]:
        """The slot's table, the layer's place among those that have it, and the shapes."""
        table = self.table
        shapes = (table.widths[slot], self.shape.rank, self.shape.aligned)
        return table.table[table.index[slot]], table.place[slot][layer], shapes


class _TableProject(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        lora: TableLora,
        layer: int,
        slot: str,
    ) -> Tensor:
        y = F.linear(x, weight, bias)
        thin = lora.add_product(layer, slot, x, y)
        ctx.save_for_backward(x, weight, thin)
        ctx.facts = (lora, layer, slot)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, thin = ctx.saved_tensors
        lora, layer, slot = ctx.facts
        dy = grads[0].contiguous()
        dx = dy @ weight if ctx.needs_input_grad[0] else None
        lora.add_gradients(layer, slot, x, thin, dy, dx)
        return dx, None, None, None, None, None, None


def _places(placed: PlacedSlot) -> dict[int, int]:
    return {layer: place for place, layer in enumerate(placed.layers)}


def _row(segment: Segment, slot: str) -> NDArray[np.int64]:
    row = np.zeros(kernel.FIELDS, np.int64)
    factors = segment.factors.get(slot)
    if factors is None:
        return row
    grads = segment.grads[slot] if segment.grads is not None else None
    row[: 2 * len(factors.b) + 2] = list(_addresses(factors, grads))
    row[kernel.RANK_FIELD] = factors.b[0].shape[-1]
    row[kernel.SCALING_FIELD] = int(np.float32(segment.scaling).view(np.int32))
    return row


def _addresses(factors: Factors, grads: Factors | None) -> list[int]:
    pairs = [(factors.a, None if grads is None else grads.a)]
    pairs += [(b, None if grads is None else grads.b[i]) for i, b in enumerate(factors.b)]
    return [0 if t is None else t.data_ptr() for pair in pairs for t in pair]
