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

from tinkex.engine.adapters.layout import Factors
from tinkex.engine.adapters.packed import PackedLora, Segment
from tinkex.engine.kernels import lora_table as kernel
from tinkex.engine.model.config import ModelConfig, slots
from tinkex.engine.model.matrices import frozen
from tinkex.engine.model.matrices.frozen import Matrix
from tinkex.engine.model.matrices.packed_experts import ExpertStack
from tinkex.engine.model.ops import logits
from tinkex.engine.model.routes import Routes
from tinkex.engine.model.slots import UNEMBED, PlacedSlot
from tinkex.engine.to_device import to_device

LEAST_RANK = 32
"""That kernels are compiled for, the SDK's default: smaller ones share them."""


def table_slots(config: ModelConfig) -> dict[str, PlacedSlot]:
    """The slots whose products are made by table: all but the unembedding."""
    return {name: placed for name, placed in slots(config).items() if name != UNEMBED}


def steady_lora(
    segments: Sequence[Segment], slots: Mapping[str, PlacedSlot], rows: int, device: torch.device
) -> TableLora:
    """Batch-invariant products of these segments, for any of the slots, the unembedding too."""
    table = LoraTable(slots, rows, len(segments), device)
    table.fill(segments)
    return TableLora(table, segments, Shape.of(segments), device, steady=True)


@dataclass(frozen=True, slots=True)
class Shape:
    """What kernels are compiled for: the power of two, `LEAST_RANK` at least, that holds every
    rank, and whether all ranks and widths are multiples of 8."""

    rank: int
    aligned: bool

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Shape:
        every = [factors for segment in segments for factors in segment.factors.values()]
        ranks = [factors.b[0].shape[-1] for factors in every] or [1]
        widths = [width for f in every for width in (f.a.shape[-1], *(b.shape[-2] for b in f.b))]
        return cls(
            max(LEAST_RANK, 1 << (max(ranks) - 1).bit_length()),
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
        self.experts = {
            name: placed.slot.experts_a or placed.slot.experts_b for name, placed in slots.items()
        }
        self.index = {name: at for at, name in enumerate(slots)}
        tiles = -(-rows // kernel.ROWS) + groups - 1
        self._device, self._groups = device, groups
        # One more for rows that use no adapter.
        shape = (len(slots), groups + 1, kernel.FIELDS)
        self.table = torch.zeros(shape, dtype=torch.int64, device=device)
        self.owners = torch.zeros(rows, dtype=torch.int64, device=device)
        """Each token's adapter."""
        self.tiles = torch.zeros(tiles, kernel.TILE_FIELDS, dtype=torch.int32, device=device)
        self.bounds = torch.zeros(groups, kernel.TILE_FIELDS, dtype=torch.int32, device=device)
        self.counts = kernel.counters(tiles, device)

    def fill(self, segments: Sequence[Segment]) -> None:
        """Name these segments' adapters from the next launch on. Does not wait."""
        table = np.zeros(self.table.shape, np.int64)
        for group, segment in enumerate(segments):
            for name, at in self.index.items():
                table[at, group] = _row(segment, name)
        bounds = np.zeros(self.bounds.shape, np.int32)
        bounds[: len(segments), :3] = [(at, s.start, s.stop) for at, s in enumerate(segments)]
        cut = [
            (group, first, s.stop, 0)
            for group, s in enumerate(segments)
            for first in range(s.start, s.stop, kernel.ROWS)
        ]
        tiles = np.zeros(self.tiles.shape, np.int32)
        tiles[: len(cut)] = cut
        owners = np.full(len(self.owners), self._groups, np.int64)
        for group, segment in enumerate(segments):
            owners[segment.start : segment.stop] = group
        filled = (self.table, table), (self.bounds, bounds), (self.tiles, tiles)
        for target, values in (*filled, (self.owners, owners)):
            target.copy_(to_device(values, self._device))

    def clear(self) -> None:
        """Name no adapter until the next `fill`."""
        self.tiles.zero_()
        self.bounds.zero_()

    @property
    def adapters(self) -> int:
        """Rows of the table, that for none included."""
        return self._groups + 1


class TableLora(PackedLora):
    """A `Lora` for the segments a table names, whose ranks `shape` allows."""

    def __init__(
        self, table: LoraTable, segments: Sequence[Segment], shape: Shape, device: torch.device,
        *, steady: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(segments, device)
        self.table, self.shape = table, shape
        self.steady = steady
        # A matrix library is faster for one adapter where all rows are its own.
        self._alone = len(segments) == 1 and not steady

    def expand(
        self, layer: int, slot: str, x: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        from tinkex.engine.adapters.grouped_experts import TableExpand

        apply: Any = TableExpand.apply
        result: Tensor = apply(x, self._anchor, weight, self, layer, slot, routes)
        return result

    def contract(
        self, layer: int, slot: str, x: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        from tinkex.engine.adapters.grouped_experts import TableContract

        apply: Any = TableContract.apply
        result: Tensor = apply(x, self._anchor, weight, self, layer, slot, routes)
        return result

    def _projected(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None, *, wide: bool
    ) -> Tensor:
        if self._alone or slot not in self.table.index:
            return super()._projected(layer, slot, x, weight, bias, wide=wide)
        if torch.is_grad_enabled():
            apply: Any = _TableProject.apply
            result: Tensor = apply(x, self._anchor, weight, bias, self, layer, slot, wide)
            return result
        if slot == UNEMBED:
            y = logits(x, weight)
        else:
            y = (frozen.linear_wide if wide else frozen.linear)(x, weight, bias)
        self.add_product(layer, slot, x, y)
        return y

    def add_product(self, layer: int, slot: str, x: Tensor, y: Tensor) -> Tensor:
        """Add every segment's product to `y`; returns A x."""
        thin = self.shrunk(layer, slot, x)
        self.expand_thin(layer, slot, thin, y)
        return thin

    def shrunk(self, layer: int, slot: str, x: Tensor) -> Tensor:
        """A x of every segment."""
        table, layer, where = self.where(slot, layer)
        tiles, counts = self.table.tiles, self.table.counts
        return kernel.shrink(x, table, tiles, counts, layer, *where, False, steady=self.steady)

    def expand_thin(self, layer: int, slot: str, thin: Tensor, y: Tensor) -> None:
        """Add B of every segment, times what `shrunk` gave, to `y`."""
        table, layer, where = self.where(slot, layer)
        kernel.expand(y, thin, table, self.table.tiles, layer, *where, False)

    def add_gradients(
        self, layer: int, slot: str, x: Tensor, thin: Tensor, dy: Tensor, dx: Tensor | None
    ) -> None:
        """Add to the factors' gradients and, unless None, to `dx`."""
        table, layer, where = self.where(slot, layer)
        tiles, bounds, counts = self.table.tiles, self.table.bounds, self.table.counts
        back = kernel.shrink(dy, table, tiles, counts, layer, *where, True, steady=self.steady)
        kernel.add_sums(dy, thin, table, bounds, layer, *where, False)
        kernel.add_sums(x, back, table, bounds, layer, *where, True)
        if dx is not None:
            kernel.expand(dx, back, table, tiles, layer, *where, True)

    def where(self, slot: str, layer: int) -> tuple[Tensor, int, tuple[tuple[int, ...], int, bool]]:
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
        weight: Matrix,
        bias: Tensor | None,
        lora: TableLora,
        layer: int,
        slot: str,
        wide: bool,
    ) -> Tensor:
        y = (frozen.linear_wide if wide else frozen.linear)(x, weight, bias)
        thin = lora.add_product(layer, slot, x, y)
        ctx.save_for_backward(x, thin)
        ctx.facts = (weight, lora, layer, slot)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, thin = ctx.saved_tensors
        weight, lora, layer, slot = ctx.facts
        dy = grads[0].to(x.dtype).contiguous()
        dx = frozen.times(dy, weight) if ctx.needs_input_grad[0] else None
        lora.add_gradients(layer, slot, x, thin, dy, dx)
        return dx, None, None, None, None, None, None, None


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
