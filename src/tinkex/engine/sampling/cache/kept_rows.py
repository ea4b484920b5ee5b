"""Keys and values of branches that decode together, kept contiguous between steps.

Gathering every row's pages again, and attention over strided memory, is most of a small model's
attention. Here rows are contiguous matrices that batched products take, and every step only adds
what is new. Rows that end before all others, and rows that come after all others, change nothing
for those that stay; otherwise everything is laid out again. The pages get every token as well: this
is a copy. Only on a CPU, where numpy and torch share memory: numpy moves these few numbers faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tinkex.engine.model.config import ModelConfig
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, KeyValueCache, PageTable, place_of
from tinkex.engine.sampling.request import Branch
from tinkex.engine.sampling.scheduling.chunks import Chunk

Floats: TypeAlias = NDArray[np.float32]

MAX_BYTES = 64 << 20
"""Bytes of all layers together; longer or more rows are gathered in every step."""

_SPARE_TOKENS = 4 * PAGE_SIZE
"""Tokens that may come before everything is laid out again."""

_SPARE_ROWS = 8
"""Rows that may come, or as many as there are already if those are more."""

_SHORT = 8 * PAGE_SIZE
"""Rows up to this long are taken together; longer ones if none is over twice as long as another."""


def can_keep(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a model's attention is plain enough: every layer sees all tokens, in float32."""
    plain = all(m is None or (m.window is None and not m.sinks) for m in config.attends)
    return plain and device.type == "cpu" and dtype == torch.float32


@dataclass(slots=True)
class _Layout:
    """Room for so many rows of so many tokens, and the branches whose rows they are, from place
    `first` on."""

    rows: int
    tokens: int
    branches: list[Branch]
    first: int = 0
    layers: dict[int, Floats] = field(default_factory=dict)
    """Keys and values by layer: [2, rows, heads, tokens, head size]."""


class KeptRows:
    """`put` may be called in steps that `follow` has accepted."""

    places: NDArray[np.int64]
    """Places of the step's tokens in the cache."""

    def __init__(self, cache: KeyValueCache, config: ModelConfig) -> None:
        self._cache = cache
        self._depth = sum(mixer is not None for mixer in config.attends)
        self._heads, self._size = config.attention.kv_heads, config.attention.head_dim
        self._layout: _Layout | None = None
        self._lengths: list[int] = []
        self._known = 0

    def follow(self, chunks: Sequence[Chunk]) -> bool:
        """Note the chunks of a step; says whether they are single tokens whose rows can be kept."""
        branches, lengths = [chunk.branch for chunk in chunks], [chunk.stop for chunk in chunks]
        starts = [chunk.start for chunk in chunks]
        if sum(lengths) - sum(starts) != len(chunks):
            self._layout = None
            return False
        if not self._goes_on(branches, starts):
            self._layout, self._known = self._new_layout(branches, lengths), 0
        self._lengths = lengths
        if self._layout is not None:
            self._point(self._layout)
        return self._layout is not None

    def put(self, layer: int, pairs: Floats) -> tuple[Floats, Floats]:
        """Keep the newest keys and values [rows, 2, kv heads, head size]. Returns all keys and all
        values of the layer, each [matrices, tokens, head size]."""
        layout, size = self._kept, self._size
        self._cache.tokens(layer).numpy()[self.places] = pairs
        room = layout.layers.get(layer)
        if room is None:
            shape = (2, layout.rows, self._heads, layout.tokens, size)
            room = layout.layers[layer] = np.zeros(shape, np.float32)
        if self._known < len(self._lengths):
            self._gather(layer, layout, room)
        room.reshape(-1, size)[self._cells] = pairs.reshape(-1, size)
        rows = slice(layout.first, layout.first + len(layout.branches))
        keys, values = (part[rows].reshape(-1, layout.tokens, size) for part in room)
        return keys[:, : self._tokens], values[:, : self._tokens]

    @property
    def mask(self) -> Floats | None:
        """The mask added to every row's scores [matrices, 1, tokens]: minus infinity after its end.
        None if all rows have one length."""
        if min(self._lengths) == self._tokens:
            return None
        ends = np.repeat(self._lengths, self._heads)[:, None, None]
        unseen = np.arange(self._tokens) >= ends
        return np.where(unseen, np.float32(-np.inf), np.float32(0))

    @property
    def _kept(self) -> _Layout:
        assert self._layout is not None
        return self._layout

    def _goes_on(self, branches: list[Branch], starts: list[int]) -> bool:
        """Whether the layout can continue: the first rows may have left, and others come after the
        last. Notes how many there were before."""
        layout = self._layout
        if layout is None or branches[0] not in layout.branches:
            return False
        left = layout.branches.index(branches[0])
        known = len(layout.branches) - left
        if layout.branches[left:] != branches[:known] or self._lengths[left:] != starts[:known]:
            return False
        first = layout.first + left
        if first + len(branches) > layout.rows or max(starts) >= layout.tokens:
            return False
        layout.first, layout.branches, self._known = first, branches, known
        return _alike(starts)

    def _new_layout(self, branches: list[Branch], lengths: list[int]) -> _Layout | None:
        """Room for these rows; None if that would be too much or too little of it used."""
        tokens = max(lengths) + _SPARE_TOKENS
        one = 2 * self._heads * tokens * self._size * 4 * self._depth
        if not _alike(lengths) or len(branches) * one > MAX_BYTES:
            return None
        wanted = len(branches) + max(_SPARE_ROWS, len(branches))
        return _Layout(min(wanted, MAX_BYTES // one), tokens, branches)

    def _point(self, layout: _Layout) -> None:
        """Find the places of this step's tokens."""
        rows = zip(layout.branches, self._lengths, strict=True)
        self.places = np.array([place_of(branch.pages, length - 1) for branch, length in rows])
        self._tokens = max(self._lengths)
        count, heads = len(layout.branches), self._heads
        matrices = np.arange(layout.first * heads, (layout.first + count) * heads)
        newest = matrices.reshape(count, heads) * layout.tokens
        newest += np.array(self._lengths)[:, None] - 1
        values = layout.rows * heads * layout.tokens
        self._cells = np.stack([newest, newest + values], axis=1).reshape(-1)

    def _gather(self, layer: int, layout: _Layout, room: Floats) -> None:
        """Fetch the keys and values of new rows; what lies after their ends is finite."""
        branches, lengths = layout.branches[self._known :], self._lengths[self._known :]
        width = -(-max(lengths) // PAGE_SIZE)
        pages = [branch.pages[:width] for branch in branches]
        table = PageTable.of([p + [0] * (width - len(p)) for p in pages], torch.device("cpu"))
        start = layout.first + self._known
        for part, found in zip(room, self._cache.read(layer, table), strict=True):
            into = part[start : start + len(branches), :, : table.tokens]
            into[:] = found[:, :, : into.shape[2]].numpy()


def _alike(lengths: list[int]) -> bool:
    """Whether few keys are read needlessly if all rows are read up to the longest."""
    return max(lengths) <= max(2 * min(lengths), _SHORT)
