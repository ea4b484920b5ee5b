"""Low-rank products of many adapters of one shape, each kind in a single grouped product.

Where launching work costs more than the work, as on a GPU with many small runs in a batch, eight
adapters then cost as many launches as one. The sums are those of `lora`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.adapters import AdapterLayout, Factors
from tinkex.engine.fused import runs_triton
from tinkex.engine.lora import PackedLora, Segment
from tinkex.engine.transfer import to_device

ALIGNMENT = 8
"""Grouped products want rows of a multiple of 16 bytes."""


def can_group(layouts: Sequence[AdapterLayout]) -> bool:
    """Whether these adapters are several, of one shape, and fit the grouped product."""
    if len(layouts) < 2 or not hasattr(F, "grouped_mm"):
        return False
    first = layouts[0]
    widths = [out for placed in first.slots.values() for _, out in placed.slot.modules]
    widths += [placed.slot.in_features for placed in first.slots.values()]
    aligned = all(width % ALIGNMENT == 0 for width in (first.spec.rank, *widths))
    alike = all(
        layout.spec.rank == first.spec.rank and layout.slots.keys() == first.slots.keys()
        for layout in layouts
    )
    return aligned and alike


class GroupedLora(PackedLora):
    """A `Lora` whose segments' factors, and gradients, are stacked with the segment in front."""

    def __init__(
        self,
        segments: Sequence[Segment],
        factors: Mapping[str, Factors],
        grads: Mapping[str, Factors] | None,
        device: torch.device,
    ) -> None:
        super().__init__(segments, device)
        self.factors, self.grads = factors, grads
        self.scaling = segments[0].scaling
        self._ends = to_device(np.array([s.stop for s in segments], dtype=np.int32), device)
        self._groups: Any = None
        if runs_triton(self._ends):
            from tinkex.engine import lora_kernel

            self._groups = lora_kernel.groups([(s.start, s.stop) for s in segments], device)

    def project(
        self, layer: int, slot: str, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        if slot not in self.factors:
            return F.linear(x, weight, bias)
        if torch.is_grad_enabled():
            apply: Any = _GroupedProject.apply
            result: Tensor = apply(x, self._anchor, weight, bias, self, layer, slot)
            return result
        y = F.linear(x, weight, bias)
        self.add_product(layer, slot, x, y)
        return y

    def add_product(self, layer: int, slot: str, x: Tensor, y: Tensor) -> Tensor:
        """Add every segment's product to `y`; returns A x."""
        factors, start = self.factors[slot], 0
        place = factors.place[layer]
        inner = self.product(x, factors.a[:, place].mT)
        for b, part in zip(factors.b, inner.chunk(len(factors.b), dim=1), strict=True):
            stop = start + b.shape[-2]
            self._add(y[:, start:stop], part, b[:, place].mT)
            start = stop
        return inner

    def add_gradients(
        self, layer: int, slot: str, x: Tensor, inner: Tensor, dy: Tensor, dx: Tensor | None
    ) -> None:
        """Add to the factors' gradients and, unless None, to `dx`."""
        factors, start, d_parts = self.factors[slot], 0, []
        place = factors.place[layer]
        for index, part in enumerate(inner.chunk(len(factors.b), dim=1)):
            b = factors.b[index]
            own = dy[:, start : start + b.shape[-2]]
            d_parts.append(self.product(own, b[:, place]))
            if self.grads is not None:
                self._add_sums(self.grads[slot].b[index][:, place], own, part)
            start += b.shape[-2]
        d_inner = torch.cat(d_parts, dim=1)
        if self.grads is not None:
            self._add_sums(self.grads[slot].a[:, place], d_inner, x)
        if dx is not None:
            self._add(dx, d_inner, factors.a[:, place])

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Segment by segment: tokens times a stack of matrices, or tokens times tokens."""
        result: Tensor = F.grouped_mm(left, right, offs=self._ends)
        return result

    def _add(self, y: Tensor, left: Tensor, right: Tensor) -> None:
        """y += scaling · left @ right, segment by segment."""
        if self._groups is None:
            y.add_(self.product(left, right), alpha=self.scaling)
        else:
            from tinkex.engine import lora_kernel

            lora_kernel.add_products(y, left, right, self.scaling, self._groups)

    def _add_sums(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        """total += scaling · left.T @ right, segment by segment."""
        if self._groups is None:
            total.add_(self.product(left.mT, right), alpha=self.scaling)
        else:
            from tinkex.engine import lora_kernel

            lora_kernel.add_sums(total, left, right, self.scaling, self._groups)


class _GroupedProject(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        lora: GroupedLora,
        layer: int,
        slot: str,
    ) -> Tensor:
        y = F.linear(x, weight, bias)
        inner = lora.add_product(layer, slot, x, y)
        ctx.save_for_backward(x, weight, inner)
        ctx.facts = (lora, layer, slot)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inner = ctx.saved_tensors
        lora, layer, slot = ctx.facts
        dy = grads[0].contiguous()
        dx = dy @ weight if ctx.needs_input_grad[0] else None
        lora.add_gradients(layer, slot, x, inner, dy, dx)
        return dx, None, None, None, None, None, None
