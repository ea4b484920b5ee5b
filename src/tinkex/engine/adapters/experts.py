"""Low-rank products of one adapter over a mixture of experts, forward and backward.

On the side of the residual stream one factor serves all experts, so it is applied to tokens, not to
rows: A before tokens are spread over experts, B after what they found is summed. On the other side
an adapter's rows of one expert lie side by side in the batch: they are read and written in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.adapters.layout import Factors
from tinkex.engine.model.routes import Routes, grouped_products, loops_without_python, takes_groups


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

    def pieces(self, rows: Tensor) -> Sequence[Tensor]:
        """Views of our rows among the batch's, one for each expert that got any."""
        if self.rows is None:
            return self.routes.pieces(rows)
        bounds, sizes, end = self.routes.bounds, [], 0
        firsts = self.rows[[start for _, start, _ in bounds]].tolist()
        for first, (_, start, stop) in zip(firsts, bounds, strict=True):
            sizes += [first - end, stop - start]
            end = first + stop - start
        return rows.split_with_sizes([*sizes, len(rows) - end])[1::2]

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
    for b, own, part in _by_module(factors, share.routes.rows(inner), y):
        _add_products(share, part, own, b[place], scaling)
    return inner


def add_expanded_gradients(
    share: Share, factors: Factors, grads: Factors | None, layer: int, scaling: float,
    x: Tensor, inner: Tensor, dy: Tensor, dx: Tensor | None,
) -> None:  # fmt: skip
    """Add the share's part to the factors' gradients and, unless None, to its tokens' `dx`."""
    place, routes = factors.place[layer], share.routes
    spread = routes.rows(inner)
    d_spread = [
        _own_products(share, part, b[place].mT) for b, _, part in _by_module(factors, spread, dy)
    ]
    d_inner = routes.combine(torch.cat(d_spread, dim=1))
    if grads is not None:
        for total, own, part in _by_module(grads, spread, dy):
            _add_sums(
                routes.matrices(total[place]), share.pieces(part), routes.pieces(own), scaling
            )
        _accumulate(grads.a[place], d_inner, x, scaling)
    if dx is not None:
        dx.addmm_(d_inner, factors.a[place], alpha=scaling)


def add_contracted(
    share: Share, factors: Factors, layer: int, scaling: float, x: Tensor, y: Tensor
) -> Tensor:
    """Add B Σ (A x) to the share's tokens `y`, `x` being all rows; returns Σ A x by token."""
    place, a = factors.place[layer], factors.a[factors.place[layer]]
    if takes_groups(x, a):
        rows = grouped_products(share.take(x), a, share.routes)
    else:
        rows = _own_products(share, x, a)
    inner = share.routes.combine(rows)
    y.addmm_(inner, factors.b[0][place].T, alpha=scaling)
    return inner


def add_contracted_gradients(
    share: Share, factors: Factors, grads: Factors | None, layer: int, scaling: float,
    x: Tensor, inner: Tensor, dy: Tensor, dx: Tensor | None,
) -> None:  # fmt: skip
    """Add the share's part to the factors' gradients and, unless None, to its rows of `dx`."""
    place, routes = factors.place[layer], share.routes
    d_rows = routes.rows(dy @ factors.b[0][place])
    if grads is not None:
        _accumulate(grads.b[0][place], dy, inner, scaling)
        _add_sums(routes.matrices(grads.a[place]), routes.pieces(d_rows), share.pieces(x), scaling)
    if dx is not None:
        _add_products(share, dx, d_rows, factors.a[place].mT, scaling)


def _by_module(
    factors: Factors, ranks: Tensor, columns: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each module's B, its ranks and its columns."""
    parts = columns.split_with_sizes([b.shape[-2] for b in factors.b], dim=1)
    return zip(factors.b, ranks.chunk(len(parts), dim=1), parts, strict=True)


def _add_products(share: Share, y: Tensor, own: Tensor, factor: Tensor, scaling: float) -> None:
    """y[ours] += scaling · own @ factor[expert].T."""
    if takes_groups(own, factor):
        share.add(y, grouped_products(own.contiguous(), factor, share.routes), scaling)
        return
    matrices = share.routes.matrices(factor.mT)
    for part, rows, one in zip(share.pieces(y), share.routes.pieces(own), matrices, strict=True):
        part.addmm_(rows, one, alpha=scaling)


def _own_products(share: Share, x: Tensor, factor: Tensor) -> Tensor:
    """x[ours] @ factor[expert].T, of our rows alone."""
    routes = share.routes
    if share.rows is None and loops_without_python(x, factor):
        return grouped_products(x, factor, routes)
    own = routes.blank(x, factor.shape[1])
    matrices = routes.matrices(factor.mT)
    for rows, part, one in zip(routes.pieces(own), share.pieces(x), matrices, strict=True):
        torch.mm(part, one, out=rows)
    return own


def _add_sums(
    totals: Sequence[Tensor], left: Sequence[Tensor], right: Sequence[Tensor], scaling: float
) -> None:
    """Each total += scaling · left.T @ right."""
    for total, one, other in zip(totals, left, right, strict=True):
        _accumulate(total, one, other, scaling)


def _accumulate(total: Tensor, left: Tensor, right: Tensor, scaling: float) -> None:
    """total += scaling · left.T @ right, in the total's float32."""
    if left.dtype == total.dtype:
        total.addmm_(left.T, right, alpha=scaling)
    else:
        total.add_(left.T @ right, alpha=scaling)
