"""Low-rank products of one adapter over a mixture of experts, forward and backward.

On the side of the residual stream one factor serves all experts, so it is applied to tokens, not to
rows: A before tokens are spread over experts, B after what they found is summed. On the other side
an adapter's rows of one expert lie side by side in the batch: they are read and written in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.adapters.layout import Factors
from tinkex.engine.model.routes import Routes, grouped_products, takes_groups


@dataclass(frozen=True, slots=True)
class Share:
    """The tokens [start, stop) of a batch that use one adapter, and where they go: `rows` are
    theirs among the batch's rows, None if all are."""

    start: int
    stop: int
    routes: Routes
    rows: Tensor | None

    @classmethod
    def of(cls, routes: Routes, start: int, stop: int) -> Share:
        return cls(start, stop, *routes.within(start, stop))

    def pieces(self) -> Iterator[tuple[int, slice, slice]]:
        """(expert, its rows among ours, the same among the batch's)."""
        bounds = self.routes.bounds
        firsts = [start for _, start, _ in bounds]
        there = firsts if self.rows is None else self.rows[firsts].tolist()
        for (expert, start, stop), first in zip(bounds, there, strict=True):
            yield expert, slice(start, stop), slice(first, first + stop - start)

    def take(self, rows: Tensor) -> Tensor:
        return rows if self.rows is None else rows.index_select(0, self.rows)

    def add(self, rows: Tensor, own: Tensor, scaling: float) -> None:
        """rows[ours] += scaling · own."""
        if self.rows is None:
            rows.add_(own, alpha=scaling)
        else:
            rows.index_add_(0, self.rows, own, alpha=scaling)


def add_expanded(
    share: Share, factors: Factors, layer: int, scaling: float, x: Tensor, y: Tensor
) -> Tensor:
    """Add B (A x) to the share's rows of `y`, `x` being its tokens; returns A x by token."""
    place = factors.place[layer]
    inner = x @ factors.a[place].T
    spread = share.routes.rows(inner).chunk(len(factors.b), dim=1)
    columns = y.split_with_sizes([b.shape[-2] for b in factors.b], dim=1)
    for own, b, part in zip(spread, factors.b, columns, strict=True):
        _add_products(share, own, b[place], part, scaling)
    return inner


def add_expanded_gradients(
    share: Share, factors: Factors, grads: Factors | None, layer: int, scaling: float,
    x: Tensor, inner: Tensor, dy: Tensor, dx: Tensor | None,
) -> None:  # fmt: skip
    """Add the share's part to the factors' gradients and, unless None, to its tokens' `dx`."""
    place, routes, modules = factors.place[layer], share.routes, len(factors.b)
    spread = routes.rows(inner)
    d_spread = routes.blank(spread, spread.shape[1])
    columns = dy.split_with_sizes([b.shape[-2] for b in factors.b], dim=1)
    ranks = zip(spread.chunk(modules, dim=1), d_spread.chunk(modules, dim=1), strict=True)
    for index, (part, (own, d_own)) in enumerate(zip(columns, ranks, strict=True)):
        b, total = factors.b[index][place], None if grads is None else grads.b[index][place]
        for expert, mine, there in share.pieces():
            torch.mm(part[there], b[expert], out=d_own[mine])
            if total is not None:
                _accumulate(total[expert], part[there], own[mine], scaling)
    d_inner = routes.combine(d_spread)
    if grads is not None:
        _accumulate(grads.a[place], d_inner, x, scaling)
    if dx is not None:
        dx.addmm_(d_inner, factors.a[place], alpha=scaling)


def add_contracted(
    share: Share, factors: Factors, layer: int, scaling: float, x: Tensor, y: Tensor
) -> Tensor:
    """Add B Σ (A x) to the share's tokens `y`, `x` being all rows; returns Σ A x by token."""
    place = factors.place[layer]
    inner = share.routes.combine(_own_products(share, x, factors.a[place]))
    y.addmm_(inner, factors.b[0][place].T, alpha=scaling)
    return inner


def add_contracted_gradients(
    share: Share, factors: Factors, grads: Factors | None, layer: int, scaling: float,
    x: Tensor, inner: Tensor, dy: Tensor, dx: Tensor | None,
) -> None:  # fmt: skip
    """Add the share's part to the factors' gradients and, unless None, to its rows of `dx`."""
    place = factors.place[layer]
    d_rows, a = share.routes.rows(dy @ factors.b[0][place]), factors.a[place]
    if grads is not None:
        _accumulate(grads.b[0][place], dy, inner, scaling)
    for expert, mine, there in share.pieces():
        if grads is not None:
            _accumulate(grads.a[place][expert], d_rows[mine], x[there], scaling)
        if dx is not None:
            dx[there].addmm_(d_rows[mine], a[expert], alpha=scaling)


def _add_products(share: Share, own: Tensor, factor: Tensor, y: Tensor, scaling: float) -> None:
    """y[ours] += scaling · own @ factor[expert].T."""
    if takes_groups(own, factor):
        share.add(y, grouped_products(own.contiguous(), factor, share.routes), scaling)
        return
    for expert, mine, there in share.pieces():
        y[there].addmm_(own[mine], factor[expert].T, alpha=scaling)


def _own_products(share: Share, x: Tensor, factor: Tensor) -> Tensor:
    """x[ours] @ factor[expert].T."""
    if takes_groups(x, factor):
        return grouped_products(share.take(x), factor, share.routes)
    out = share.routes.blank(x, factor.shape[1])
    for expert, mine, there in share.pieces():
        torch.mm(x[there], factor[expert].T, out=out[mine])
    return out


def _accumulate(total: Tensor, left: Tensor, right: Tensor, scaling: float) -> None:
    """total += scaling · left.T @ right, in the total's float32."""
    if left.dtype == total.dtype:
        total.addmm_(left.T, right, alpha=scaling)
    else:
        total.add_(left.T @ right, alpha=scaling)
