"""The keys and values of cached tokens, in pages. Knows places, not owners: see `pages`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.passes import Routed
from tinkex.engine.sampling.cache.pages import SCRATCH_PAGE
from tinkex.engine.sampling.cache.route_cache import RouteCache

PAGE_SIZE = 16


def page_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers."""
    return len(_attending(config)) * PAGE_SIZE * 2 * config.attention.kv_size * dtype.itemsize


@dataclass(frozen=True, slots=True)
class PageTable:
    """Which pages to read: `width` each for `rows` sequences."""

    rows: int
    width: int
    pages: Tensor | slice
    """Indices to gather by; or, for one sequence whose pages are contiguous, a slice."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], device: torch.device) -> PageTable:
        """A table of lists of one length."""
        count, width = len(rows), len(rows[0])
        first = rows[0][0]
        if count == 1 and list(rows[0]) == list(range(first, first + width)):
            return cls(count, width, slice(first, first + width))
        return cls(count, width, torch.tensor(rows, device=device).flatten())

    @property
    def tokens(self) -> int:
        """Tokens of each sequence, including the places after its end."""
        return self.width * PAGE_SIZE


class KeyValueCache:
    """One tensor per model: [attention layers, pages, page size, key or value, heads, head size].

    A token's keys and values lie side by side, so that one write and one gather serve both. Pages
    start as zeros and are cleared for whoever has them next: on a CPU, rows beyond a sequence's end
    are read and masked, and NaN or infinity, as weights that diverged leave them, show through.
    """

    def __init__(
        self, config: ModelConfig, pages: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (
            len(_attending(config)), pages + 1, PAGE_SIZE,
            2, config.attention.kv_heads, config.attention.head_dim,
        )  # fmt: skip
        self._store = zeros(shape, dtype, device)
        layers = dict(zip(_attending(config), self._store, strict=True))
        self._pages = {layer: own.view(pages + 1, -1) for layer, own in layers.items()}
        self._tokens = {layer: own.view(-1, 2, *shape[4:]) for layer, own in layers.items()}
        self.routes = RouteCache(config, pages, PAGE_SIZE, device) if config.mixes else None

    def write(self, layer: int, places: Tensor, pair: Tensor) -> None:
        """Put keys and values [2, N, kv heads, head size] at `places`: page · size + offset."""
        self._tokens[layer].index_copy_(0, places, pair.transpose(0, 1))

    def read(self, layer: int, table: PageTable) -> tuple[Tensor, Tensor]:
        """Keys and values, each [rows, kv heads, tokens, head size]; may be views of the cache."""
        found = (
            self._pages[layer][table.pages]
            if isinstance(table.pages, slice)
            else self._pages[layer].index_select(0, table.pages)
        )
        kv = found.view(table.rows, table.tokens, *self._tokens[layer].shape[1:])
        return kv[:, :, 0].transpose(1, 2), kv[:, :, 1].transpose(1, 2)

    def tokens(self, layer: int) -> Tensor:
        """A layer's keys and values by place: [places, 2, kv heads, head size]."""
        found: Tensor = self._tokens[layer]
        return found

    def clear(self, pages: Sequence[int]) -> None:
        """Forget what these hold. A GPU's kernels read nothing beyond a sequence's end."""
        if pages and self._store.device.type == "cpu":
            self._store.index_fill_(1, torch.tensor(pages), 0)

    def copy_page(self, source: int, target: int) -> None:
        self._store[:, target].copy_(self._store[:, source])
        if self.routes is not None:
            self.routes.copy_page(source, target)

    def note_routes(self, places: Tensor) -> Routed | None:
        """Keeps the routes of tokens at these places; None without experts."""
        return None if self.routes is None else self.routes.noting(places)


def _attending(config: ModelConfig) -> list[int]:
    """The layers whose tokens have keys and values."""
    return [layer for layer, mixer in enumerate(config.attends) if mixer is not None]


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the CPU they take no memory until they are written to, unlike torch's own."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    untouched = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(untouched).view(dtype).view(shape)


def place_of(pages: list[int], position: int) -> int:
    """The place of the token at `position` of a sequence with these pages."""
    return pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE


SCRATCH_PLACE = SCRATCH_PAGE * PAGE_SIZE
