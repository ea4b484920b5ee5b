"""Attention of a small model in numpy: single tokens over kept rows, prompts over their pages.

Prompt chunks of one length that begin at one position are taken together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from tinkex.engine.sampling.cache.kept_rows import Floats, KeptRows
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, KeyValueCache, PageTable, place_of
from tinkex.engine.sampling.cpu_decode.layer import attend
from tinkex.engine.sampling.scheduling.chunks import Chunk

LONGEST = 512
"""Tokens of a sequence up to which all scores are computed, including those that the causal mask
hides."""


def takes_prompts(chunks: Sequence[Chunk]) -> bool:
    """Whether these are prompts, or parts of some, without prompt logprobs."""
    return all(
        chunk.stop <= LONGEST and not chunk.guesses and not _scored(chunk) for chunk in chunks
    )


def _scored(chunk: Chunk) -> bool:
    return not chunk.branch.started and bool(chunk.branch.request.scores.rows)


class KeptMix:
    """A `Mix` for single tokens whose rows are kept, in a step of these."""

    def __init__(self, rows: KeptRows) -> None:
        self._rows, self._mask = rows, rows.mask

    def __call__(self, layer: int, q: Floats, pairs: Floats) -> Floats:
        keys, values = self._rows.put(layer, pairs)
        return attend(q.reshape(len(keys), -1, q.shape[-1]), keys, values, self._mask)


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbouring chunks with the same positions."""

    rows: slice  # in the batch
    count: int  # number of the chunks
    first: int  # position where each begins
    stop: int  # and ends
    table: PageTable | None  # pages of what was computed before
    mask: Floats  # [tokens, all tokens up to the end]

    def attended(self, cache: KeyValueCache, layer: int, q: Floats, pairs: Floats) -> Floats:
        """Of queries [rows, heads, size] whose own keys and values are `pairs`, already cached."""
        keys, values = self._seen(cache, layer, pairs)
        shape = (self.count, self.stop - self.first, keys.shape[1], -1, q.shape[-1])
        queries = q.reshape(shape).transpose(0, 2, 3, 1, 4)
        mixed = attend(queries, keys[:, :, None], values[:, :, None], self.mask)
        return mixed.transpose(0, 3, 1, 2, 4).reshape(q.shape)

    def _seen(self, cache: KeyValueCache, layer: int, pairs: Floats) -> tuple[Floats, Floats]:
        """Keys and values, each [chunks, kv heads, tokens, size]."""
        if self.table is not None:
            keys, values = (part.numpy() for part in cache.read(layer, self.table))
            return keys[:, :, : self.stop], values[:, :, : self.stop]
        found = pairs.reshape(self.count, self.stop, *pairs.shape[1:]).transpose(2, 0, 3, 1, 4)
        return found[0], found[1]


class PromptMix:
    """A `Mix` for concatenated chunks."""

    def __init__(self, cache: KeyValueCache, chunks: Sequence[Chunk]) -> None:
        self._cache, self._places = cache, _places(chunks)
        self._groups: list[_Group] = []
        row = 0
        for (first, stop), alike in groupby(chunks, key=lambda chunk: (chunk.start, chunk.stop)):
            group = _group(list(alike), row, first, stop)
            self._groups.append(group)
            row = group.rows.stop

    def __call__(self, layer: int, q: Floats, pairs: Floats) -> Floats:
        self._cache.tokens(layer).numpy()[self._places] = pairs
        parts = [
            group.attended(self._cache, layer, q[group.rows], pairs[group.rows])
            for group in self._groups
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _group(chunks: Sequence[Chunk], row: int, first: int, stop: int) -> _Group:
    count, length = len(chunks), stop - first
    table = None
    if first:
        width = -(-stop // PAGE_SIZE)
        table = PageTable.of([c.branch.pages[:width] for c in chunks], torch.device("cpu"))
    hidden = np.arange(stop) > np.arange(first, stop)[:, None]
    mask = np.where(hidden, np.float32(-np.inf), np.float32(0))
    return _Group(slice(row, row + count * length), count, first, stop, table, mask)


def _places(chunks: Sequence[Chunk]) -> NDArray[np.int64]:
    return np.array(
        [place_of(c.branch.pages, at) for c in chunks for at in range(c.start, c.stop)], np.int64
    )
