"""LoRA products over a mixture of experts, of any mix of adapters in shared launches.

Rows of one adapter that go to one expert lie side by side, since sequences do and sorting by expert
is stable: they are a group, and a group has one factor. On the side of the residual stream one
factor serves all experts; there tokens are multiplied, not rows. Everything is worked out on the
device: nothing waits for it. Needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from tinkex.engine.kernels import lora_table as kernel
from tinkex.engine.model.matrices.packed_experts import ExpertStack
from tinkex.engine.model.routes import Routes, products, products_back

if TYPE_CHECKING:
    from tinkex.engine.adapters.grouped import LoraTable, TableLora


_Facts: TypeAlias = "tuple[ExpertStack, TableLora, int, str, Routes]"
"""Frozen matrices, adapters, layer, slot and routes."""


@dataclass(frozen=True, slots=True)
class RowGroups:
    """`bounds` of groups and `tiles` cut from them, both as in `kernels.lora_table`."""

    bounds: Tensor
    tiles: Tensor


def row_groups(routes: Routes, table: LoraTable) -> RowGroups:
    """The groups of these routes, worked out once."""
    found: RowGroups | None = routes.notes.get(table)
    if found is None:
        found = routes.notes[table] = _group(routes, table)
    return found


def _group(routes: Routes, table: LoraTable) -> RowGroups:
    adapters, device = table.adapters, routes.tokens.device
    owner = routes.row_experts * adapters + table.owners.index_select(0, routes.tokens)
    every = torch.arange(routes.count * adapters, device=device)
    stop = torch.searchsorted(owner, every, right=True)
    start = torch.nn.functional.pad(stop[:-1], (1, 0))
    bounds = torch.stack([every % adapters, start, stop, every // adapters], 1).to(torch.int32)
    pieces = (stop - start + kernel.ROWS - 1) // kernel.ROWS
    after = pieces.cumsum(0)
    numbers = torch.arange(len(owner) // kernel.ROWS + len(every), device=device)
    group = torch.searchsorted(after, numbers, right=True).clamp_(max=len(every) - 1)
    tiles = bounds.index_select(0, group)
    within = numbers - (after - pieces).index_select(0, group)
    tiles[:, 1] += (within * kernel.ROWS).to(torch.int32)
    return RowGroups(bounds, tiles)


class TableExpand(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, weight: ExpertStack, lora: TableLora, layer: int,
        slot: str, routes: Routes,
    ) -> Tensor:  # fmt: skip
        y = products(routes.rows(x), weight, routes)
        entry, place, shapes = lora.where(slot, layer)
        table, groups = lora.table, row_groups(routes, lora.table)
        thin = kernel.shrink(x, entry, table.tiles, table.counts, place, *shapes, back=False)
        kernel.expand(
            y,
            thin,
            entry,
            groups.tiles,
            place,
            *shapes,
            back=False,
            experts=table.experts[slot],
            tokens=routes.tokens,
        )
        ctx.save_for_backward(x, thin)
        ctx.facts = (weight, lora, layer, slot, routes)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, thin = ctx.saved_tensors
        facts: _Facts = ctx.facts
        weight, lora, layer, slot, routes = facts
        entry, place, shapes = lora.where(slot, layer)
        table, groups = lora.table, row_groups(routes, lora.table)
        many, dy = table.experts[slot], grads[0].contiguous()
        back = kernel.shrink(
            dy, entry, groups.tiles, table.counts, place, *shapes, back=True, experts=many
        )
        kernel.add_sums(
            dy,
            thin,
            entry,
            groups.bounds,
            place,
            *shapes,
            back=False,
            experts=many,
            tokens=routes.tokens,
        )
        back = routes.combine(routes.clear(back))
        kernel.add_sums(x, back, entry, table.bounds, place, *shapes, back=True)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = routes.combine(products_back(dy, weight, routes))
            kernel.expand(dx, back, entry, table.tiles, place, *shapes, back=True)
        return dx, None, None, None, None, None, None


class TableContract(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, weight: ExpertStack, lora: TableLora, layer: int,
        slot: str, routes: Routes,
    ) -> Tensor:  # fmt: skip
        y = routes.combine(products(x, weight, routes))
        entry, place, shapes = lora.where(slot, layer)
        table, groups = lora.table, row_groups(routes, lora.table)
        many = table.experts[slot]
        rows = kernel.shrink(
            x, entry, groups.tiles, table.counts, place, *shapes, back=False, experts=many
        )
        thin = routes.combine(routes.clear(rows))
        kernel.expand(y, thin, entry, table.tiles, place, *shapes, back=False)
        ctx.save_for_backward(x, thin)
        ctx.facts = (weight, lora, layer, slot, routes)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, thin = ctx.saved_tensors
        facts: _Facts = ctx.facts
        weight, lora, layer, slot, routes = facts
        entry, place, shapes = lora.where(slot, layer)
        table, groups = lora.table, row_groups(routes, lora.table)
        many, dy = table.experts[slot], grads[0].contiguous()
        back = kernel.shrink(dy, entry, table.tiles, table.counts, place, *shapes, back=True)
        kernel.add_sums(dy, thin, entry, table.bounds, place, *shapes, back=False)
        kernel.add_sums(
            x,
            back,
            entry,
            groups.bounds,
            place,
            *shapes,
            back=True,
            experts=many,
            tokens=routes.tokens,
        )
        dx = None
        if ctx.needs_input_grad[0]:
            dx = products_back(routes.rows(dy), weight, routes)
            kernel.expand(
                dx,
                back,
                entry,
                groups.tiles,
                place,
                *shapes,
                back=True,
                experts=many,
                tokens=routes.tokens,
            )
        return dx, None, None, None, None, None, None
