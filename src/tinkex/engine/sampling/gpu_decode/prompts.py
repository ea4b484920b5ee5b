"""Prompts of few tokens as captured graphs: what such a pass takes is to launch its kernels.

Every token is a row of its own with the pages of its sequence, as in a decode step; all keys and
values are written before any is read. That reads a sequence's pages once for each of its tokens, so
it is for short ones. A graph is captured in idle time only: until it is there, and for whatever is
not taken here, passes go the common way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.cuda import Stream

from tinkex.engine.adapters.grouped import LEAST_RANK
from tinkex.engine.kernels import dependent_launch
from tinkex.engine.kernels import paged_attention as paged_kernel
from tinkex.engine.kernels.row_adapters import MAX_RANK
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.passes import Lora
from tinkex.engine.sampling.adapters import Version
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, KeyValueCache
from tinkex.engine.sampling.device_attention import page_table, places_of
from tinkex.engine.sampling.gpu_decode.adapter_table import AdapterTable
from tinkex.engine.sampling.gpu_decode.products import AdapterProducts, BareProducts
from tinkex.engine.sampling.gpu_decode.rows import segments_of
from tinkex.engine.sampling.projection import Span, spans_of
from tinkex.engine.sampling.scheduling.chunks import Chunk

BUCKETS = (16, 32, 64, 128, 192, 256)
"""Tokens that a pass is rounded up to."""

_MOST_READ = 1 << 16
"""Tokens that all rows may look back at together: of an 8B model 0.25 GB a layer, which a pass
reads out of the card's caches in about 2 ms."""

_LIKELY_RANKS = (0, LEAST_RANK, 64)
"""Of adapters for which passes are captured before anybody asks; smaller ranks share the first."""

_TOKENS, _POSITIONS, _PLACES, _OWNERS, _SEGMENTS, _NUMBERS = 0, 1, 2, 3, 4, 7

_Key: TypeAlias = tuple[int, int]
"""Rows, and the rank of adapters, 0 without any."""


class PromptGraphs:
    def __init__(self, decoder: Decoder, cache: KeyValueCache, context: int) -> None:
        self._decoder, self._cache = decoder, cache
        rows, pages, device = BUCKETS[-1], -(-context // PAGE_SIZE) + 1, decoder.device
        self._numbers = torch.zeros(_NUMBERS, rows, dtype=torch.int32, device=device)
        self._table = torch.zeros(pages, rows, dtype=torch.int32, device=device)
        self._staged = torch.zeros(_NUMBERS, rows, dtype=torch.int32, pin_memory=True)
        self._staged_table = torch.zeros(pages, rows, dtype=torch.int32, pin_memory=True)
        self._uploaded: torch.cuda.Event | None = None
        self._adapters = AdapterTable(decoder.config, rows, device)
        self._found: dict[_Key, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._wanted = [(size, rank) for rank in _LIKELY_RANKS for size in BUCKETS]
        self._pool = torch.cuda.graph_pool_handle()
        self._side = Stream(device, priority=-1)

    def hidden(self, chunks: Sequence[Chunk]) -> Tensor | None:
        """After the final norm, of the chunks' tokens end to end; fills their pages. None, and
        nothing done, where they are not for here."""
        lengths = [chunk.stop - chunk.start for chunk in chunks]
        if not _takes(chunks, sum(lengths)):
            return None
        spans = spans_of([chunk.branch.request.version for chunk in chunks], lengths)
        tuned = [span for span in spans if span.version.products]
        places = self._adapters.places([span.version for span in tuned])
        bucket = next(size for size in BUCKETS if size >= sum(lengths))
        key = (bucket, self._adapters.rank if tuned else 0)
        if key not in self._found:
            if key not in self._wanted:
                self._wanted.append(key)
            return None
        self._upload(
            chunks, lengths, segments_of(tuned, places, len(self._staged[0])), tuned, places
        )
        graph, hidden = self._found[key]
        graph.replay()
        return hidden[: sum(lengths)]

    def prepare(self) -> bool:
        """Capture one more pass that is likely to be asked for, or was; False if all are."""
        if not self._wanted:
            return False
        key = self._wanted.pop(0)
        # Rows of the pass before name pages and adapters that are not for this one.
        self._numbers.zero_()
        with torch.inference_mode():
            self._found[key] = self._capture(*key)
        return True

    def _upload(
        self, chunks: Sequence[Chunk], lengths: Sequence[int], segments: NDArray[np.int32],
        tuned: Sequence[Span], places: Sequence[int],
    ) -> None:  # fmt: skip
        if self._uploaded is not None:
            self._uploaded.synchronize()  # what is staged must have left before it is written over
        host: NDArray[np.int32] = self._staged.numpy()
        count = sum(lengths)
        host[:] = 0
        host[_TOKENS, :count] = np.concatenate([chunk.tokens() for chunk in chunks])
        host[_POSITIONS, :count] = np.concatenate([np.arange(c.start, c.stop) for c in chunks])
        host[_PLACES, :count] = np.concatenate([places_of(chunk) for chunk in chunks])
        host[_SEGMENTS:] = segments
        for span, place in zip(tuned, places, strict=True):
            host[_OWNERS, span.start : span.stop] = place + 1
        table = page_table(chunks)
        pages = table.shape[1]
        self._staged_table.numpy()[:pages, :count] = np.repeat(table, lengths, axis=0).T
        self._staged_table.numpy()[:pages, count:] = 0
        self._numbers.copy_(self._staged, non_blocking=True)
        self._table[:pages].copy_(self._staged_table[:pages], non_blocking=True)
        self._uploaded = torch.cuda.Event()
        self._uploaded.record()

    def _capture(self, rows: int, rank: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        # Kernels compile and libraries set themselves up on first use: not while capturing.
        side = Stream(self._decoder.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._compute(rows, rank)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            hidden = self._compute(rows, rank)
        return graph, hidden

    def _compute(self, rows: int, rank: int) -> Tensor:
        numbers, decoder = self._numbers[:, :rows], self._decoder
        places = numbers[_PLACES]
        attend = _Attend(self._cache, decoder, self._table, numbers[_POSITIONS], places)
        lora: Lora = BareProducts()
        with dependent_launch.chained(decoder.device):
            if rank:
                where = (numbers[_SEGMENTS:], numbers[_OWNERS], rank, self._side)
                lora = AdapterProducts(self._adapters, decoder, *where)
            routed = self._cache.note_routes(places)
            return decoder.hidden(
                numbers[_TOKENS], numbers[_POSITIONS], attend, lora, on_routes=routed
            )


class _Attend:
    """An `Attend` for tokens of which several may be of one sequence."""

    def __init__(
        self, cache: KeyValueCache, decoder: Decoder, table: Tensor, positions: Tensor,
        places: Tensor,
    ) -> None:  # fmt: skip
        self._cache, self._windows, self._table = cache, decoder.config.windows, table
        self._positions, self._places = positions, places

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        tokens = self._cache.tokens(layer)
        paged_kernel.write(tokens, self._places, k, v)
        return paged_kernel.attend(
            q, tokens, self._table, self._positions, PAGE_SIZE, self._windows[layer], sinks
        )


def _takes(chunks: Sequence[Chunk], tokens: int) -> bool:
    read = sum((chunk.stop - chunk.start) * chunk.stop for chunk in chunks)
    return tokens <= BUCKETS[-1] and read <= _MOST_READ and all(map(_served, _versions(chunks)))


def _versions(chunks: Sequence[Chunk]) -> list[Version]:
    return [chunk.branch.request.version for chunk in chunks]


def _served(version: Version) -> bool:
    return version.rank <= MAX_RANK
