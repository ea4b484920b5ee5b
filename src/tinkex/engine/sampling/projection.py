"""Matrix products for one step's tokens, each with its own adapter.

Tokens are sorted by version, so a version is a slice. One or two versions are added slice by slice;
more become one batched product over a stack of their factors, whatever their number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.adapters import layout as adapters
from tinkex.engine.adapters.experts import Share, add_contracted, add_expanded
from tinkex.engine.model.blocks.experts import expert_product
from tinkex.engine.model.matrices.frozen import Matrix, linear_wide
from tinkex.engine.model.matrices.packed_experts import ExpertStack
from tinkex.engine.model.passes import Lora
from tinkex.engine.model.products import FrozenProducts
from tinkex.engine.model.routes import Routes, products
from tinkex.engine.sampling.adapters import Version
from tinkex.engine.sampling.slot_products import Part

STACK_FROM = 3
"""Number of versions from which one batched product beats a product each."""

STACKED_ROWS = 16
"""Rows of a version up to which padding all versions to the longest makes a batched product
worthwhile."""

KEPT_STACKS = 2
"""A step's tokens and the rows it draws from may be of different versions."""

_Factors: TypeAlias = tuple[Tensor, Tensor]
_Stack: TypeAlias = dict[tuple[int, str], _Factors | None]


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [start, stop) that use one version."""

    start: int
    stop: int
    version: Version


class Projection(Lora):
    """The products of one step."""

    def __init__(
        self, frozen: FrozenProducts, spans: Sequence[Span], stacks: Stacks, device: torch.device
    ) -> None:
        self._frozen, self._stacks = frozen, stacks
        tuned = [span for span in spans if span.version.products or span.version.experts]
        short = [span for span in tuned if _is_short(span)]
        self._stacked = short if len(short) >= STACK_FROM else []
        self._spans = [span for span in tuned if span not in self._stacked]
        if self._stacked:
            self._versions = tuple(span.version for span in self._stacked)
            self._rows = _rectangle(self._stacked)
            self._places = None if self._rows else _places(self._stacked, device)

    def project(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        y = self._frozen.product(layer, slot, x, weight, bias)
        self._add_adapters(layer, slot, x, y)
        return y

    def project_onto(
        self, onto: Tensor, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        if onto.dtype == x.dtype:
            return onto + self.project(layer, slot, x, weight, bias)
        y = linear_wide(x, weight, bias)
        self._add_adapters(layer, slot, x, y)
        return onto.add_(y)

    def _add_adapters(self, layer: int, slot: str, x: Tensor, y: Tensor) -> None:
        for span in self._spans:
            for part in _parts(span.version, layer, slot):
                own, into = x[span.start : span.stop], y[span.start : span.stop, part.columns]
                _add(into, own @ part.a, part.b, part.scaling)
        if self._stacked:
            self._add_stacked(layer, slot, x, y)

    def expand(
        self, layer: int, slot: str, x: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        y = self._by_expert(layer, slot, routes.rows(x), weight, routes)
        for span, factors in self._tuned_experts(layer, slot):
            share = Share.of(routes, span.start, span.stop)
            add_expanded(share, factors, layer, 1.0, x[span.start : span.stop], y)
        return y

    def contract(
        self, layer: int, slot: str, x: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        y = routes.combine(self._by_expert(layer, slot, x, weight, routes))
        for span, factors in self._tuned_experts(layer, slot):
            share = Share.of(routes, span.start, span.stop)
            add_contracted(share, factors, layer, 1.0, x, y[span.start : span.stop])
        return y

    def _by_expert(
        self, layer: int, slot: str, rows: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        if rows.is_cuda:
            return products(rows, weight, routes)
        out = routes.blank(rows, weight.shape[1])
        for expert, start, stop in routes.bounds:
            own, one = rows[start:stop], weight[expert]
            if isinstance(weight, Tensor):
                name = expert_product(slot, expert)
                out[start:stop] = self._frozen.few_rows(layer, name, own, one)
            else:
                out[start:stop] = self._frozen.once(own, one)
        return out

    def _tuned_experts(self, layer: int, slot: str) -> Iterator[tuple[Span, adapters.Factors]]:
        for span in (*self._spans, *self._stacked):
            factors = span.version.experts.get((layer, slot))
            if factors is not None:
                yield span, factors

    def _add_stacked(self, layer: int, slot: str, x: Tensor, y: Tensor) -> None:
        factors = self._stacks.get(self._versions, layer, slot)
        if factors is None:
            return
        a, b = factors
        if self._places is None:
            rectangle = (len(self._versions), -1)
            inner = torch.bmm(x[self._rows].view(*rectangle, x.shape[1]), a)
            _add(y[self._rows].view(*rectangle, y.shape[1]), inner, b)
            return
        source, rows, cells = self._places
        padded = x.index_select(0, source).view(len(self._versions), -1, x.shape[1])
        added = torch.bmm(torch.bmm(padded, a), b).view(-1, y.shape[1])
        y.index_add_(0, rows, added.index_select(0, cells).to(y.dtype))


def _add(y: Tensor, left: Tensor, right: Tensor, scaling: float = 1.0) -> None:
    """y += scaling · left @ right, matrix by matrix if there are several; y may be of more bits."""
    if y.dtype != left.dtype:
        y.add_(left @ right, alpha=scaling)
    elif y.ndim == 2:
        y.addmm_(left, right, alpha=scaling)
    else:
        y.baddbmm_(left, right)


class Stacks:
    """Stacked factors of versions that recently shared a batch: [versions, …], ranks padded."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[Version, ...], _Stack] = OrderedDict()

    def get(self, versions: tuple[Version, ...], layer: int, slot: str) -> _Factors | None:
        stack = self._found.setdefault(versions, {})
        self._found.move_to_end(versions)
        if len(self._found) > KEPT_STACKS:
            self._found.popitem(last=False)
        key = (layer, slot)
        if key not in stack:
            stack[key] = _stack([_factors(version, layer, slot) for version in versions])
        return stack[key]


def spans_of(versions: Sequence[Version], lengths: Sequence[int] | None = None) -> list[Span]:
    """Spans of rows by version, `lengths` of each (1 if not given); neighbours of one version are
    joined."""
    if versions and versions[0] is versions[-1]:
        rows = len(versions) if lengths is None else sum(lengths)
        return [Span(0, rows, versions[0])]
    spans: list[Span] = []
    start = 0
    for index, version in enumerate(versions):
        stop = start + (1 if lengths is None else lengths[index])
        if spans and spans[-1].version is version:
            spans[-1] = Span(spans[-1].start, stop, version)
        else:
            spans.append(Span(start, stop, version))
        start = stop
    return spans


def _is_short(span: Span) -> bool:
    """Whether it can be stacked. A version whose factors are used as they lie is never stacked:
    other versions must not change its sums."""
    return span.stop - span.start <= STACKED_ROWS and not span.version.as_it_lies


def _parts(version: Version, layer: int, slot: str) -> tuple[Part, ...]:
    assert version.products is not None
    return version.products.get((layer, slot), ())


def _factors(version: Version, layer: int, slot: str) -> _Factors | None:
    """Of one that is not as it lies."""
    parts = _parts(version, layer, slot)
    return (parts[0].a, parts[0].b) if parts else None


def _rectangle(spans: Sequence[Span]) -> slice | None:
    """The rows of the spans, if these have one length and are neighbours."""
    first, width = spans[0].start, spans[0].stop - spans[0].start
    for index, span in enumerate(spans):
        start = first + index * width
        if (span.start, span.stop) != (start, start + width):
            return None
    return slice(first, spans[-1].stop)


def _places(spans: Sequence[Span], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For a rectangle of spans by rows: the row each cell reads, and for every real cell the row
    it is added to and its own number. Cells that only pad read their span's first row."""
    width = max(span.stop - span.start for span in spans)
    source, rows, cells = [], [], []
    for index, span in enumerate(spans):
        for offset in range(width):
            row = span.start + offset
            real = row < span.stop
            source.append(row if real else span.start)
            if real:
                rows.append(row)
                cells.append(index * width + offset)
    made = torch.tensor([source, rows + [0] * (len(source) - len(rows)),
                         cells + [0] * (len(source) - len(cells))], device=device)  # fmt: skip
    return made[0], made[1, : len(rows)], made[2, : len(cells)]


def _stack(factors: Sequence[_Factors | None]) -> _Factors | None:
    """Versions without this product get zeros; None if there is none at all."""
    present = [pair for pair in factors if pair is not None]
    if not present:
        return None
    width = max(a.shape[1] for a, _ in present)
    a_like, b_like = present[0]
    missing = (a_like.new_zeros(a_like.shape[0], 0), b_like.new_zeros(0, b_like.shape[1]))
    pairs = [pair if pair is not None else missing for pair in factors]
    a = torch.stack([F.pad(a, (0, width - a.shape[1])) for a, _ in pairs])
    b = torch.stack([F.pad(b, (0, 0, 0, width - b.shape[0])) for _, b in pairs])
    return a, b
