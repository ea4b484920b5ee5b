"""Attention of branches that decode together, their keys and values kept laid out between steps.

Gathering every row's pages anew and attending over what lies strided in them is most of a small
model's attention. Rows that are the same as in the step before are laid out once, as matrices that
batched products take, and from then on only their new tokens are put in. The pages get them as
well: what is here is a copy, and is let go as soon as the rows are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tinkex.engine.model.config import ModelConfig
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, KeyValueCache, PageTable, place_of
from tinkex.engine.sampling.request import Branch
from tinkex.engine.sampling.scheduling.chunks import Chunk

MAX_BYTES = 64 << 20
"""Of all layers together; longer or more rows are gathered step by step."""

_SPARE = 4 * PAGE_SIZE
"""Tokens that may come before everything is laid out again."""

_SHORT = 8 * PAGE_SIZE
"""Rows up to this long are taken together; longer ones if none is over twice as long as another."""


def can_keep(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a model's attention is plain enough: every layer sees all tokens, in float32."""
    plain = all(m is None or (m.window is None and not m.sinks) for m in config.attends)
    return plain and device.type == "cpu" and dtype == torch.float32


@dataclass(slots=True)
class _Layout:
    """Room for `capacity` tokens in a matrix for every row and key head."""

    capacity: int  # tokens of one matrix
    cells: Tensor
    """Where the newest tokens go: of all keys, then of all values."""
    mask: Tensor
    """Zero where a row has a token, minus infinity after its end: [matrices, 1, capacity]."""
    seen: Tensor
    """Cells of the mask that belong to the newest tokens: those of their keys."""
    table: PageTable
    """Where everything is gathered from."""
    layers: dict[int, Tensor] = field(default_factory=dict)
    """By layer the keys and values [2, matrices, capacity, head size]."""


class KeptAttention:
    """An `Attend` for steps that `follow` has said it can take."""

    places: Tensor

    def __init__(self, cache: KeyValueCache, config: ModelConfig) -> None:
        self._cache = cache
        self._depth = sum(mixer is not None for mixer in config.attends)
        self._heads, self._size = config.attention.kv_heads, config.attention.head_dim
        self._branches: list[Branch] = []
        self._lengths: list[int] = []
        self._layout: _Layout | None = None
        self._tokens = 0

    def follow(self, chunks: Sequence[Chunk]) -> bool:
        """Note the chunks of a step; says whether they are single tokens of the same rows as in
        the step before, whose keys can be kept."""
        branches, lengths = [chunk.branch for chunk in chunks], [chunk.stop for chunk in chunks]
        before = [chunk.start for chunk in chunks]
        follows = before == self._lengths and branches == self._branches
        self._branches, self._lengths, self._tokens = branches, lengths, max(lengths)
        if not follows or not all(c.stop - c.start == 1 for c in chunks):
            self._layout = None
        elif self._layout is not None and self._tokens <= self._layout.capacity:
            self._advance(self._layout)
        else:
            self._layout = self._laid_out()
        return self._layout is not None

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        layout = self._layout
        assert layout is not None
        pair = torch.stack((k, v))
        self._cache.write(layer, self.places, pair)
        room = layout.layers.get(layer)
        if room is None:
            room = layout.layers[layer] = self._gathered(layer, layout)
        else:
            room.view(-1, self._size).index_copy_(0, layout.cells, pair.view(-1, self._size))
        keys, values = room.narrow(2, 0, self._tokens).unbind()
        queries, mask = q.reshape(len(keys), -1, self._size), layout.mask.narrow(2, 0, self._tokens)
        scores = torch.baddbmm(mask, queries, keys.mT, alpha=self._size**-0.5)
        return torch.bmm(scores.softmax(-1), values).view(q.shape)

    def _advance(self, layout: _Layout) -> None:
        """Every row has one token more."""
        layout.cells.add_(1)  # and so those seen, which are a part of them
        layout.mask.view(-1).index_fill_(0, layout.seen, 0.0)
        self.places = self._places()

    def _laid_out(self) -> _Layout | None:
        """Room for these rows; None if that would be too much or too little of it used."""
        matrices, capacity = len(self._lengths) * self._heads, self._tokens + _SPARE
        if self._tokens > max(2 * min(self._lengths), _SHORT):
            return None
        if 2 * matrices * capacity * self._size * 4 * self._depth > MAX_BYTES:
            return None
        self.places = self._places()
        ends = torch.tensor(self._lengths).repeat_interleave(self._heads)
        newest = torch.arange(matrices) * capacity + ends - 1
        mask = torch.zeros(matrices, 1, capacity)
        mask.masked_fill_(torch.arange(capacity) >= ends[:, None, None], -torch.inf)
        cells = torch.cat([newest, newest + matrices * capacity])
        return _Layout(capacity, cells, mask, cells[:matrices], self._table())

    def _places(self) -> Tensor:
        """Of the newest tokens, in the cache."""
        rows = zip(self._branches, self._lengths, strict=True)
        return torch.tensor([place_of(branch.pages, length - 1) for branch, length in rows])

    def _table(self) -> PageTable:
        width = -(-self._tokens // PAGE_SIZE)
        rows = [branch.pages[:width] for branch in self._branches]
        return PageTable.of(
            [pages + [0] * (width - len(pages)) for pages in rows], torch.device("cpu")
        )

    def _gathered(self, layer: int, layout: _Layout) -> Tensor:
        """The layer's keys and values of all rows; what lies after their ends is finite."""
        room = torch.zeros(2, len(layout.mask), layout.capacity, self._size)
        rows = room.view(2, -1, self._heads, layout.capacity, self._size)
        for part, found in zip(rows, self._cache.read(layer, layout.table), strict=True):
            part[:, :, : layout.table.tokens] = found[:, :, : layout.capacity]
        return room
