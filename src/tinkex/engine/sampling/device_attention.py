"""Attention of one step's tokens over their sequences' pages, by kernels that read them in place.

What `PagedAttention` is on a CPU. Single tokens are one launch, prompt chunks another, whatever
their number and lengths; everything that does not depend on the layer is prepared once per step.
Needs a GPU and Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.kernels import chunk_attention as chunk_kernel
from tinkex.engine.kernels import paged_attention as paged_kernel
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, KeyValueCache
from tinkex.engine.sampling.scheduling.chunks import Chunk
from tinkex.engine.to_device import to_device


class DeviceAttention:
    """An `Attend` for `chunks` laid end to end."""

    def __init__(
        self,
        cache: KeyValueCache,
        windows: Sequence[int | None],
        chunks: Sequence[Chunk],
        device: torch.device,
    ) -> None:
        self._cache, self._windows = cache, windows
        self.places = to_device(np.concatenate([places_of(chunk) for chunk in chunks]), device)
        starts = np.cumsum([0, *(chunk.stop - chunk.start for chunk in chunks)])
        single = np.array([chunk.stop - chunk.start == 1 for chunk in chunks])
        self._singles = int(single.sum())
        self._only_singles = self._singles == len(chunks)
        if self._singles:
            alone = [chunk for chunk, one in zip(chunks, single, strict=True) if one]
            self._rows = to_device(starts[:-1][single], device)
            self._positions = to_device(np.array([c.start for c in alone], np.int32), device)
            self._single_table = to_device(page_table(alone).T.copy(), device)
        if not self._only_singles:
            longer = [(int(at), c) for at, c, one in zip(starts, chunks, single, strict=False)
                      if not one]  # fmt: skip
            cut = chunk_kernel.tiles(
                [(at, c.stop - c.start, c.start, index) for index, (at, c) in enumerate(longer)]
            )
            self._cut = to_device(cut, device)
            self._table = to_device(page_table([chunk for _, chunk in longer]), device)

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        tokens, window = self._cache.tokens(layer), self._windows[layer]
        paged_kernel.write(tokens, self.places, k, v)
        if self._only_singles:
            return self._attend_singles(q, tokens, window, sinks)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        chunk_kernel.attend(q, tokens, self._table, self._cut, out, PAGE_SIZE, window, sinks)
        if self._singles:
            some = self._attend_singles(q.index_select(0, self._rows), tokens, window, sinks)
            out.index_copy_(0, self._rows, some)
        return out

    def _attend_singles(
        self, q: Tensor, tokens: Tensor, window: int | None, sinks: Tensor | None
    ) -> Tensor:
        return paged_kernel.attend(
            q, tokens, self._single_table, self._positions, PAGE_SIZE, window, sinks
        )


def places_of(chunk: Chunk) -> NDArray[np.int64]:
    """Where the chunk's tokens are kept."""
    positions = np.arange(chunk.start, chunk.stop)
    pages = np.asarray(chunk.branch.pages, np.int64)
    return pages[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE


def page_table(chunks: Sequence[Chunk]) -> NDArray[np.int32]:
    """The pages of each chunk's sequence up to its end, a row each, zeros after them."""
    widths = [-(-chunk.stop // PAGE_SIZE) for chunk in chunks]
    table = np.zeros((len(chunks), max(widths)), np.int32)
    for row, (chunk, width) in enumerate(zip(chunks, widths, strict=True)):
        table[row, :width] = chunk.branch.pages[:width]
    return table
