"""Low-rank products of one adapter over a mixture of experts, forward and backward.

On the side of the residual stream one factor serves all experts, so it is applied to tokens, not to
rows: A before tokens are spread over experts, B after what they found is summed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.adapters.layout import Factors
from tinkex.engine.model.routes import Routes, add_sums, thin_products


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
    place, routes = factors.place[layer], share.routes
    inner = x @ factors.a[place].T
    spread = routes.rows(inner).chunk(len(factors.b), dim=1)
    parts = [
        thin_products(part.contiguous(), b[place], routes)
        for part, b in zip(spread, factors.b, strict=True)
    ]
    share.add(y, torch.cat(parts, dim=1), scaling)
    return inner


def add_expanded_gradients(
    share: Share, factors: Factors, grads: Factors | None, layer: int, scaling: float,
    x: Tensor, inner: Tensor, dy: Tensor, dx: Tensor | None,
) -> None:  # fmt: skip
    """Add the share's part to the factors' gradients and, unless None, to its tokens' `dx`."""
    place, routes = factors.place[layer], share.routes
    own = share.take(dy).split_with_sizes([b.shape[-2] for b in factors.b], dim=1)
    spread = routes.rows(inner).chunk(len(factors.b), dim=1)
    d_parts = []
    for index, (part, b) in enumerate(zip(own, factors.b, strict=True)):
        part = part.contiguous()
        d_parts.append(thin_products(part, b[place].mT, routes))
        if grads is not None:
            add_sums(grads.b[index][place], part, spread[index].contiguous(), routes, scaling)
    d_inner = routes.combine(torch.cat(d_parts, dim=1))
    if grads is not None:
        _accumulate(grads.a[place], d_inner, x, scaling)
    if dx is not None:
        dx.addmm_(d_inner, factors.a[place], alpha=scaling)


def add_contracted(
    share: Share, factors: Factors, layer: int, scaling: float, x: Tensor, y: Tensor
) -> Tensor:
    """Add B Σ (A x) to the share's tokens `y`, `x` being all rows; returns Σ A x by token."""
    place = factors.place[layer]
    inner = share.routes.combine(thin_products(share.take(x), factors.a[place], share.routes))
    y.addmm_(inner, factors.b[0][place].T, alpha=scaling)
    return inner


def add_contracted_gradients(
    share: Share, factors: Factors, grads: Factors | None, layer: int, scaling: float,
    x: Tensor, inner: Tensor, dy: Tensor, dx: Tensor | None,
) -> None:  # fmt: skip
    """Add the share's part to the factors' gradients and, unless None, to its rows of `dx`."""
    place, routes = factors.place[layer], share.routes
    d_inner = dy @ factors.b[0][place]
    d_rows = routes.rows(d_inner)
    if grads is not None:
        _accumulate(grads.b[0][place], dy, inner, scaling)
        add_sums(grads.a[place], d_rows, share.take(x), routes, scaling)
    if dx is not None:
        share.add(dx, thin_products(d_rows, factors.a[place].mT, routes), scaling)


def _accumulate(total: Tensor, left: Tensor, right: Tensor, scaling: float) -> None:
    """total += scaling · left.T @ right, in the total's float32."""
    if left.dtype == total.dtype:
        total.addmm_(left.T, right, alpha=scaling)
    else:
        total.add_(left.T @ right, alpha=scaling)
