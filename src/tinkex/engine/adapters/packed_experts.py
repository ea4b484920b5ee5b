"""Products of a mixture of experts in training: frozen ones for all tokens, low-rank ones by call.

Gradients of the factors are added straight into each call's own vector, as in `packed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tinkex.engine.adapters.experts import (
    Share,
    add_contracted,
    add_contracted_gradients,
    add_expanded,
    add_expanded_gradients,
)
from tinkex.engine.model.matrices.packed_experts import ExpertStack
from tinkex.engine.model.routes import Routes, products, products_back

if TYPE_CHECKING:
    from tinkex.engine.adapters.packed import Segment


class Expand(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, weight: ExpertStack,
        shares: Sequence[tuple[Segment, Share]], layer: int, slot: str, routes: Routes,
    ) -> Tensor:  # fmt: skip
        y = products(routes.rows(x), weight, routes)
        inner = [
            add_expanded(share, s.factors[slot], layer, s.scaling, x[s.start : s.stop], y)
            for s, share in shares
        ]
        ctx.save_for_backward(x, *inner)
        ctx.facts = (weight, shares, layer, slot, routes)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *inner = ctx.saved_tensors
        weight, shares, layer, slot, routes = ctx.facts
        dy, dx = grads[0].contiguous(), None
        if ctx.needs_input_grad[0]:
            dx = routes.combine(products_back(dy, weight, routes))
        for (s, share), own in zip(shares, inner, strict=True):
            part, sums = slice(s.start, s.stop), None if s.grads is None else s.grads[slot]
            add_expanded_gradients(
                share, s.factors[slot], sums, layer, s.scaling, x[part], own, dy,
                None if dx is None else dx[part],
            )  # fmt: skip
        return dx, None, None, None, None, None, None


class Contract(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, weight: ExpertStack,
        shares: Sequence[tuple[Segment, Share]], layer: int, slot: str, routes: Routes,
    ) -> Tensor:  # fmt: skip
        y = routes.combine(products(x, weight, routes))
        inner = [
            add_contracted(share, s.factors[slot], layer, s.scaling, x, y[s.start : s.stop])
            for s, share in shares
        ]
        ctx.save_for_backward(x, *inner)
        ctx.facts = (weight, shares, layer, slot, routes)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *inner = ctx.saved_tensors
        weight, shares, layer, slot, routes = ctx.facts
        dy, dx = grads[0].contiguous(), None
        if ctx.needs_input_grad[0]:
            dx = products_back(routes.rows(dy), weight, routes)
        for (s, share), own in zip(shares, inner, strict=True):
            sums = None if s.grads is None else s.grads[slot]
            add_contracted_gradients(
                share, s.factors[slot], sums, layer, s.scaling, x, own, dy[s.start : s.stop], dx
            )
        return dx, None, None, None, None, None, None
