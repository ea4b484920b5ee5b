"""Low-rank products over packed tokens, each call's tokens with its own adapter.

Tokens are sorted by call, so a call is a slice. The frozen product is made once for all tokens,
the low-rank ones slice by slice, and gradients of the factors are added straight into each call's
own vector: one call never touches another's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinkex.engine.adapters.experts import Share
from tinkex.engine.adapters.layout import Factors
from tinkex.engine.adapters.packed_experts import Contract, Expand
from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.model.matrices import frozen
from tinkex.engine.model.matrices.frozen import Matrix
from tinkex.engine.model.matrices.packed_experts import ExpertStack
from tinkex.engine.model.ops import logits
from tinkex.engine.model.passes import Lora
from tinkex.engine.model.routes import Routes
from tinkex.engine.model.slots import UNEMBED


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens [start, stop) and the factors they use; `grads` has the same slots, in float32."""

    start: int
    stop: int
    scaling: float
    factors: Mapping[str, Factors]
    grads: Mapping[str, Factors] | None


class PackedLora(Lora):
    """A `Lora` for one micro-batch. Backward passes add into the segments' `grads`."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self.segments = segments
        # Factors are no autograd leaves; this one makes the products part of the graph.
        self._anchor = torch.zeros((), device=device, requires_grad=True)

    def project(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        return self._projected(layer, slot, x, weight, bias, wide=False)

    def project_onto(
        self, onto: Tensor, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        wide = onto.dtype != x.dtype
        return onto + self._projected(layer, slot, x, weight, bias, wide=wide)

    def _projected(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None, *, wide: bool
    ) -> Tensor:
        """`wide`, the sum of both products is not rounded to the dtype of x."""
        adapted = any(slot in segment.factors for segment in self.segments)
        if adapted and torch.is_grad_enabled():
            apply: Any = _Project.apply
            result: Tensor = apply(x, self._anchor, weight, bias, self.segments, layer, slot, wide)
            return result
        if x.is_cuda and isinstance(weight, Tensor) and slot == UNEMBED:
            y = logits(x, weight)
        else:
            y = (frozen.linear_wide if wide else frozen.linear)(x, weight, bias)
        for segment in self.segments if adapted else ():
            add_product(segment, layer, slot, x[segment.start : segment.stop], y)
        return y

    def expand(
        self, layer: int, slot: str, x: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        return self._experts(Expand, layer, slot, x, weight, routes)

    def contract(
        self, layer: int, slot: str, x: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        return self._experts(Contract, layer, slot, x, weight, routes)

    def _experts(
        self, product: Any, layer: int, slot: str, x: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        shares = [
            (segment, Share.of(routes, segment.start, segment.stop))
            for segment in self.segments
            if slot in segment.factors
        ]
        result: Tensor = product.apply(x, self._anchor, weight, shares, layer, slot, routes)
        return result


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        weight: Matrix,
        bias: Tensor | None,
        segments: Sequence[Segment],
        layer: int,
        slot: str,
        wide: bool,
    ) -> Tensor:
        y = (frozen.linear_wide if wide else frozen.linear)(x, weight, bias)
        inner = [add_product(s, layer, slot, x[s.start : s.stop], y) for s in segments]
        ctx.save_for_backward(x, *(h for h in inner if h is not None))
        ctx.facts = (weight, segments, layer, slot)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *inner = ctx.saved_tensors
        weight, segments, layer, slot = ctx.facts
        dy = grads[0].to(x.dtype)
        dx = frozen.times(dy, weight) if ctx.needs_input_grad[0] else None
        waiting = iter(inner)
        for segment in segments:
            if slot in segment.factors:
                part = slice(segment.start, segment.stop)
                to_x = None if dx is None else dx[part]
                add_gradients(segment, layer, slot, x[part], next(waiting), dy[part], to_x)
        return dx, None, None, None, None, None, None, None


def add_product(segment: Segment, layer: int, slot: str, x: Tensor, y: Tensor) -> Tensor | None:
    """Add the segment's product for its tokens `x` to its rows of `y`; returns A x."""
    factors = segment.factors.get(slot)
    if factors is None:
        return None
    place = factors.place[layer]
    inner = x @ factors.a[place].T
    own, rank, start = y[segment.start : segment.stop], factors.b[0].shape[-1], 0
    for index, b in enumerate(factors.b):
        stop, columns = start + b.shape[1], slice(index * rank, (index + 1) * rank)
        _add_product(own[:, start:stop], inner[:, columns], b[place].T, segment.scaling)
        start = stop
    return inner


def add_gradients(
    segment: Segment,
    layer: int,
    slot: str,
    x: Tensor,
    inner: Tensor,
    dy: Tensor,
    dx: Tensor | None,
) -> None:
    """Add one segment's share to its factors' gradients and, unless None, to `dx`."""
    factors, scaling = segment.factors[slot], segment.scaling
    place = factors.place[layer]
    rank, start, d_inner = factors.b[0].shape[-1], 0, torch.empty_like(inner)
    for index, b in enumerate(factors.b):
        columns, stop = slice(index * rank, (index + 1) * rank), start + b.shape[1]
        torch.mm(dy[:, start:stop], b[place], out=d_inner[:, columns])
        if segment.grads is not None:
            total = segment.grads[slot].b[index][place]
            _accumulate(total, dy[:, start:stop], inner[:, columns], scaling)
        start = stop
    if segment.grads is not None:
        _accumulate(segment.grads[slot].a[place], d_inner, x, scaling)
    if dx is not None:
        _add_product(dx, d_inner, factors.a[place], scaling)


def _add_product(y: Tensor, left: Tensor, right: Tensor, scaling: float) -> None:
    """y += scaling · left @ right."""
    if runs_triton(y):
        from tinkex.engine.kernels import lora as lora_kernel

        lora_kernel.add_products(y, left, right, scaling)
    else:
        y.addmm_(left, right, alpha=scaling)


def _accumulate(total: Tensor, left: Tensor, right: Tensor, scaling: float) -> None:
    """total += scaling · left.T @ right, in the total's float32."""
    if left.dtype == total.dtype:
        total.addmm_(left.T, right, alpha=scaling)
    else:
        total.add_(left.T @ right, alpha=scaling)
