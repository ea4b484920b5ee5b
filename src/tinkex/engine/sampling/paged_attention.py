"""Attention of one step's tokens over the pages of their sequences.

Single tokens (the next token of a branch) are computed together: branches of similar length as one
rectangle, keys gathered by page, everything beyond a branch's end masked. Prompt chunks are
computed one by one, except that new prompts of one length go together. What does not depend on the
layer is prepared once per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.model.attention_sinks import attend_with_sinks, sink_queries
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.sampling.cache.kv_cache import (
    PAGE_SIZE,
    SCRATCH_PLACE,
    KeyValueCache,
    PageTable,
    place_of,
)
from tinkex.engine.sampling.scheduling.chunks import Chunk

_FEW_QUERIES = 16
"""Queries of a chunk up to which repeating the keys for every query head costs most of all."""


@dataclass(slots=True)
class _Rectangle:
    """Single tokens, each over its own sequence."""

    rows: Tensor | slice  # their rows in the batch
    count: int  # how many they are
    table: PageTable  # their pages
    lengths: Tensor  # tokens that each sees
    length: int | None  # the same for all; None: they differ
    # By window, made when first needed.
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Stretch:
    """Prompt chunks of one length side by side: their rows in the batch, their number, and of a
    single one that goes on from `first`, its pages up to its end."""

    start: int  # the first row
    stop: int  # the row after the last
    first: int  # position of the first token
    table: PageTable | None  # what was computed before is read from there
    count: int = 1  # of the chunks
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)  # by window

    @property
    def length(self) -> int:
        """Tokens of each chunk."""
        return (self.stop - self.start) // self.count

    def by_head(self, x: Tensor) -> Tensor:
        """Rows [N, heads, size] as [chunks, heads, length, size]."""
        return x.view(self.count, self.length, *x.shape[1:]).transpose(1, 2)

    def joins(self, other: _Stretch) -> bool:
        """Whether this one can be taken together with those before it."""
        fresh = self.table is None and other.table is None
        return fresh and self.start == other.stop and self.length == other.length


class PagedAttention:
    """An `Attend` for `chunks` laid end to end, padded to `rows` with tokens nobody reads."""

    def __init__(
        self, cache: KeyValueCache, config: ModelConfig, chunks: Sequence[Chunk], rows: int,
        device: torch.device, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self._cache, self._windows = cache, config.windows
        self._kv_heads = config.attention.kv_heads
        self._device, self._dtype = device, dtype
        self._rows = rows
        self.places = self._find_places(chunks, rows)
        self._stretches: list[_Stretch] = []
        singles: list[tuple[int, Chunk]] = []
        row = 0
        for chunk in chunks:
            if chunk.stop - chunk.start == 1:
                singles.append((row, chunk))
            else:
                self._add_stretch(self._stretch(row, chunk))
            row += chunk.stop - chunk.start
        self._rectangles = [self._rectangle(group) for group in _similar(singles)]

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        self._cache.write(layer, self.places, torch.stack((k, v)))
        window = self._windows[layer]
        shape = q.shape
        if sinks is not None:
            q = sink_queries(q, sinks)
        if self._rectangles and self._rectangles[0].count == self._rows:
            return self._attend_rectangle(layer, q, self._rectangles[0], window)
        out = q.new_zeros(shape)
        for rectangle in self._rectangles:
            mixed = self._attend_rectangle(layer, q[rectangle.rows], rectangle, window)
            out[rectangle.rows] = mixed
        for stretch in self._stretches:
            part = slice(stretch.start, stretch.stop)
            out[part] = self._attend_stretch(layer, q[part], k[part], v[part], stretch, window)
        return out

    def _attend_rectangle(
        self, layer: int, q: Tensor, rectangle: _Rectangle, window: int | None
    ) -> Tensor:
        keys, values = self._cache.read(layer, rectangle.table)
        mask = None
        size = keys.shape[-1]
        sinks = q.shape[-1] != size
        if rectangle.length is not None and window is None and not sinks:
            keys, values = keys[:, :, : rectangle.length], values[:, :, : rectangle.length]
        else:
            mask = self._rectangle_mask(rectangle, window)
        # The query heads that share a key head stand in for a sequence of queries.
        grouped = q.view(rectangle.count, self._kv_heads, -1, q.shape[-1])
        if sinks and mask is not None:
            mixed = attend_with_sinks(grouped, keys, values, mask, size, grouped=False)
        else:
            mixed = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        return mixed.reshape(*q.shape[:-1], size)

    def _attend_stretch(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, stretch: _Stretch, window: int | None
    ) -> Tensor:
        if stretch.table is None:
            keys, values = stretch.by_head(k), stretch.by_head(v)
        else:
            keys, values = self._cache.read(layer, stretch.table)
        sinks, grouped = q.shape[-1] != k.shape[-1], q.shape[1] != k.shape[1]
        mask = self._stretch_mask(stretch, window, always=sinks)
        if sinks and mask is not None:
            mixed = attend_with_sinks(stretch.by_head(q), keys, values, mask, k.shape[-1], grouped)
        elif mask is not None and len(q) <= _FEW_QUERIES and stretch.count == 1:
            return self._attend_few(q, keys, values, mask)
        else:
            mixed = F.scaled_dot_product_attention(
                stretch.by_head(q), keys, values, attn_mask=mask, is_causal=mask is None,
                enable_gqa=grouped,
            )  # fmt: skip
        return mixed.transpose(1, 2).flatten(0, 1)

    def _attend_few(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Each query as a sequence of its own over the same keys, which are not copied for it."""
        count, _, size = q.shape
        grouped = q.view(count, self._kv_heads, -1, size)
        keys, values = keys.expand(count, -1, -1, -1), values.expand(count, -1, -1, -1)
        mixed = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask[:, None, None])
        return mixed.reshape(q.shape)

    # ---- prepared once per step

    def _find_places(self, chunks: Sequence[Chunk], rows: int) -> Tensor:
        places = [
            place_of(chunk.branch.pages, position)
            for chunk in chunks
            for position in range(chunk.start, chunk.stop)
        ]
        places.extend([SCRATCH_PLACE] * (rows - len(places)))
        return torch.tensor(places, device=self._device)

    def _rectangle(self, group: Sequence[tuple[int, Chunk]]) -> _Rectangle:
        lengths = [chunk.stop for _, chunk in group]
        width = -(-max(lengths) // PAGE_SIZE)
        table = [_padded(chunk.branch.pages[:width], width) for _, chunk in group]
        at = [row for row, _ in group]
        together = slice(at[0], at[-1] + 1)
        return _Rectangle(
            together if len(at) == at[-1] - at[0] + 1 else torch.tensor(at, device=self._device),
            len(group),
            PageTable.of(table, self._device),
            torch.tensor(lengths, device=self._device),
            lengths[0] if min(lengths) == max(lengths) else None,
        )

    def _add_stretch(self, stretch: _Stretch) -> None:
        if self._stretches and stretch.joins(self._stretches[-1]):
            self._stretches[-1].stop = stretch.stop
            self._stretches[-1].count += 1
        else:
            self._stretches.append(stretch)

    def _stretch(self, row: int, chunk: Chunk) -> _Stretch:
        table = None
        if chunk.start:
            pages = chunk.branch.pages[: -(-chunk.stop // PAGE_SIZE)]
            table = PageTable.of([pages], self._device)
        return _Stretch(row, row + chunk.stop - chunk.start, chunk.start, table)

    def _rectangle_mask(self, rectangle: _Rectangle, window: int | None) -> Tensor | None:
        if window not in rectangle.masks:
            places = torch.arange(rectangle.table.tokens, device=self._device)
            lengths = rectangle.lengths[:, None]
            seen = places < lengths
            if window is not None:
                seen &= places >= lengths - window
            rectangle.masks[window] = self._additive(seen)[:, None, None]
        return rectangle.masks[window]

    def _stretch_mask(self, stretch: _Stretch, window: int | None, always: bool) -> Tensor | None:
        """None where plain causal attention over the chunk alone is right, unless `always`."""
        count = stretch.length
        if not always and stretch.table is None and (window is None or window >= count):
            return None
        if window not in stretch.masks:
            width = count if stretch.table is None else stretch.table.tokens
            queries = torch.arange(stretch.first, stretch.first + count, device=self._device)
            distance = queries[:, None] - torch.arange(width, device=self._device)
            seen = distance >= 0
            if window is not None:
                seen &= distance < window
            stretch.masks[window] = self._additive(seen)
        return stretch.masks[window]

    def _additive(self, seen: Tensor) -> Tensor:
        """Zero where seen, minus infinity elsewhere, in the queries' dtype."""
        mask = torch.zeros(seen.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(~seen, -torch.inf)


def _similar(singles: Sequence[tuple[int, Chunk]]) -> list[list[tuple[int, Chunk]]]:
    """Groups in which nobody's keys are padded to more than twice their length, in row order."""
    groups: list[list[tuple[int, Chunk]]] = []
    limit = -1
    for item in sorted(singles, key=lambda item: item[1].stop):
        if item[1].stop > limit:
            groups.append([])
            limit = max(2 * item[1].stop, 8 * PAGE_SIZE)
        groups[-1].append(item)
    return [sorted(group, key=lambda item: item[0]) for group in groups]


def _padded(pages: list[int], width: int) -> list[int]:
    return pages + [0] * (width - len(pages))
