"""Which experts each token goes to, and products over tokens sorted by expert.

A token and one of its experts are a pair; a row is a pair in the order of experts, so that each
expert's rows lie side by side. Sorting is stable, and what comes back to a token is summed in the
order of its choices: neither depends on who else is in the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.cpu import batch_invariant
from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.model.matrices.packed_experts import ExpertStack, PackedExperts

STEADY_ROWS = 16
"""Matrix libraries sum the rows of a smaller product in another order (see `packing.SOLO_TOKENS`):
an expert that gets fewer rows is given empty ones."""

_ALIGNMENT = 8
"""Grouped products want rows of a multiple of 16 bytes."""


class Routes:
    def __init__(self, experts: Tensor, count: int, *, partial: bool = False) -> None:
        """`experts` [N, active] are the choices of each token among `count`. `partial`: a choice of
        `count` is an expert that another rank has. Its rows are the last, belong to nobody here,
        and nothing comes of them."""
        self.experts, self.count, self.partial = experts, count, partial
        flat = experts.flatten()
        ranked, self.order = flat.sort(stable=True)
        self.row_experts = ranked
        self.places = torch.empty_like(self.order)
        self.places[self.order] = torch.arange(len(flat), device=flat.device)
        self.tokens = self.order // experts.shape[1]
        self._within: dict[tuple[int, int], tuple[Routes, Tensor]] = {}
        self.notes: dict[object, Any] = {}
        """What others worked out from these routes, by who they are."""

    @functools.cached_property
    def ends(self) -> Tensor:
        """Where each expert's rows end, int32 on the device."""
        every = torch.arange(self.count, device=self.experts.device)
        return torch.searchsorted(self.row_experts, every, right=True).to(torch.int32)

    @functools.cached_property
    def bounds(self) -> list[tuple[int, int, int]]:
        """(expert, first row, last row + 1) of the experts that got any. Waits for the device."""
        ends = self.ends.tolist()
        starts = [0, *ends[:-1]]
        return [(e, a, b) for e, (a, b) in enumerate(zip(starts, ends, strict=True)) if a < b]

    @functools.cached_property
    def are_many(self) -> bool:
        """Whether no expert here got few rows, but some."""
        bounds = self.bounds
        return bool(bounds) and min(stop - start for _, start, stop in bounds) >= STEADY_ROWS

    def pieces(self, rows: Tensor) -> Sequence[Tensor]:
        """Views of the rows of each expert that got any."""
        bounds = self.bounds
        if self.partial:
            rows = rows[: bounds[-1][2] if bounds else 0]
        return rows.split_with_sizes([stop - start for _, start, stop in bounds])

    def matrices(self, stack: Tensor) -> list[Tensor]:
        """Of a stack by expert, those of the experts that got any."""
        every = stack.unbind(0)
        return [every[expert] for expert, _, _ in self.bounds]

    def rows(self, x: Tensor) -> Tensor:
        """Each row's own token of [N, width]."""
        return x.index_select(0, self.tokens)

    def combine(self, rows: Tensor) -> Tensor:
        """[N, width]: the sum of each token's rows. Without gradients."""
        if runs_triton(rows):
            from tinkex.engine.kernels.mixtures import experts as kernel

            summed: Tensor = kernel.combine(rows.contiguous(), self.places.view_as(self.experts))
            return summed
        return F.embedding_bag(self.places.view_as(self.experts), rows, mode="sum")

    @functools.cached_property
    def known_experts(self) -> Tensor:
        """Each row's expert, or for nobody's some other: to look things up by."""
        return self.row_experts.clamp(max=self.count - 1) if self.partial else self.row_experts

    def blank(self, like: Tensor, width: int) -> Tensor:
        """Rows to be filled by expert; nobody's are zero."""
        shape = (len(self.tokens), width)
        return like.new_zeros(shape) if self.partial else like.new_empty(shape)

    def clear(self, rows: Tensor) -> Tensor:
        """The same rows, nobody's made zero."""
        if self.partial:
            rows.masked_fill_(self.row_experts[:, None] >= self.count, 0.0)
        return rows

    def within(self, start: int, stop: int) -> tuple[Routes, Tensor | None]:
        """The routes of tokens [start, stop) alone, and which rows of ours theirs are: None for
        all of them."""
        if (start, stop) == (0, len(self.experts)):
            return self, None
        if (start, stop) not in self._within:
            own = Routes(self.experts[start:stop], self.count, partial=self.partial)
            width = self.experts.shape[1]
            rows = self.places[start * width : stop * width].index_select(0, own.order)
            self._within[start, stop] = own, rows
        return self._within[start, stop]


def products(x: Tensor, weight: ExpertStack, routes: Routes) -> Tensor:
    """Each row times its expert's matrix: x[row] @ weight[expert].T."""
    if isinstance(weight, PackedExperts):
        if not x.is_cpu:
            return products(x, weight.widened(), routes)
        return _of_packed(x, weight, routes, back=False)
    if takes_groups(x, weight) or (routes.are_many and loops_without_python(x, weight)):
        return grouped_products(x, weight, routes)
    out = routes.blank(x, weight.shape[1])
    parts = zip(routes.pieces(out), routes.pieces(x), routes.matrices(weight), strict=True)
    for part, rows, one in parts:
        _product_into(part, rows, one)
    return out


def products_back(x: Tensor, weight: ExpertStack, routes: Routes) -> Tensor:
    """x[row] @ weight[expert]."""
    if isinstance(weight, PackedExperts):
        if not x.is_cpu:
            return products_back(x, weight.widened(), routes)
        return _of_packed(x, weight, routes, back=True)
    return products(x, weight.mT, routes)


def _of_packed(x: Tensor, weight: PackedExperts, routes: Routes, *, back: bool) -> Tensor:
    """One expert widened at a time, of those that got rows."""
    out = routes.blank(x, weight.shape[2 if back else 1])
    parts = zip(routes.bounds, routes.pieces(out), routes.pieces(x), strict=True)
    for (expert, _, _), part, rows in parts:
        one = weight[expert]
        _product_into(part, rows, one.T if back else one)
    return out


def takes_groups(x: Tensor, other: Tensor) -> bool:
    """Whether one grouped kernel takes these: bfloat16 on a GPU, widths it can read."""
    widths = (x.shape[-1], other.shape[-1], *other.shape[1:-1])
    aligned = all(width % _ALIGNMENT == 0 for width in widths)
    return x.is_cuda and x.dtype == other.dtype == torch.bfloat16 and aligned


def loops_without_python(x: Tensor, other: Tensor) -> bool:
    """Whether torch's own loop over groups takes these on a CPU. A group's product is the one that
    would be made for it here; what is saved is a good part of a small model's time between them."""
    widths = (x.shape[-1], *other.shape[1:])
    aligned = all(width % _ALIGNMENT == 0 for width in widths)
    takes = x.is_cpu and x.dtype == other.dtype == torch.float32 and aligned and _groups_on_cpu()
    return takes and not batch_invariant.takes(x, other[0])


@functools.cache
def _groups_on_cpu() -> bool:
    """Whether this build of torch can, tried on a small product with a group of no rows."""
    draw = torch.Generator().manual_seed(0)
    x, stack = torch.randn(3, 8, generator=draw), torch.randn(2, 8, 8, generator=draw)
    try:
        found = F.grouped_mm(x, stack, offs=torch.tensor([0, 3], dtype=torch.int32))
    except (RuntimeError, AttributeError):  # not in this build
        return False
    return torch.equal(found, x @ stack[1])


def grouped_products(x: Tensor, weight: Tensor, routes: Routes) -> Tensor:
    """`products` in one call."""
    return routes.clear(F.grouped_mm(x, weight.mT, offs=routes.ends))


def _product_into(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """out = x @ weight.T, whose bits do not depend on how many rows there are."""
    short = STEADY_ROWS - len(x)
    if short <= 0 or not x.is_cpu:
        batch_invariant.linear_into(out, x, weight)
    else:
        out.copy_(batch_invariant.linear(F.pad(x, (0, 0, 0, short)), weight, None)[: len(x)])
