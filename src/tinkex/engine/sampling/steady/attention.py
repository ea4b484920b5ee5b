"""Batch-invariant attention over pages: the `Attend` of sampling in steady mode.

The kernel of training, reading the cache: prompt chunks and single tokens in one launch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.kernels import paged_attention as paged_kernel
from tinkex.engine.kernels.steady import attention as kernel
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, KeyValueCache
from tinkex.engine.sampling.device_attention import page_table, places_of
from tinkex.engine.sampling.scheduling.chunks import Chunk
from tinkex.engine.to_device import to_device


class SteadyPagedAttention:
    """An `Attend` for `chunks` laid end to end."""

    def __init__(
        self, cache: KeyValueCache, config: ModelConfig, chunks: Sequence[Chunk],
        device: torch.device,
    ) -> None:  # fmt: skip
        self.places = to_device(np.concatenate([places_of(chunk) for chunk in chunks]), device)
        starts = np.cumsum([0, *(chunk.stop - chunk.start for chunk in chunks)])
        laid = [
            (int(at), chunk.stop - chunk.start, chunk.start, index)
            for index, (at, chunk) in enumerate(zip(starts, chunks, strict=False))
        ]
        cut = to_device(kernel.tiles(laid, config.attention.group), device)
        table = to_device(page_table(chunks), device)
        longest = max(chunk.stop for chunk in chunks)
        self._rows = _Rows(cache, config, cut, table, (table.shape[1], 1), longest)

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        return self._rows.attend(layer, q, k, v, self.places)


class SteadyTokenAttention:
    """An `Attend` for single tokens, all numbers on the device: `positions` and `places` [rows],
    `table` [pages, rows]."""

    def __init__(
        self, cache: KeyValueCache, config: ModelConfig, positions: Tensor, places: Tensor,
        table: Tensor,
    ) -> None:  # fmt: skip
        self._places = places
        row = torch.arange(len(positions), dtype=torch.int32, device=positions.device)
        cut = torch.stack([row, torch.ones_like(row), positions.to(torch.int32), row], 1)
        longest, strides = len(table) * PAGE_SIZE, (1, table.stride(0))
        self._rows = _Rows(cache, config, cut.contiguous(), table, strides, longest)

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        return self._rows.attend(layer, q, k, v, self._places)


class _Rows:
    """Tiles over a cache. `strides` of the table are those of a column and of a page."""

    def __init__(
        self, cache: KeyValueCache, config: ModelConfig, cut: Tensor, table: Tensor,
        strides: tuple[int, int], longest: int,
    ) -> None:  # fmt: skip
        self._cache, self._windows = cache, config.windows
        self._cut, self._table, self._strides = cut, table, strides
        self._split = kernel.split_of(config.max_context)
        self._splits = -(-longest // self._split)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, places: Tensor) -> Tensor:
        tokens = self._cache.tokens(layer)
        paged_kernel.write(tokens, places, k, v)
        keys = kernel.Keys(tokens[:, 0], tokens[:, 1], self._table, PAGE_SIZE, *self._strides)
        window = self._windows[layer]
        return kernel.attend(q, keys, self._cut, window, self._split, self._splits)
