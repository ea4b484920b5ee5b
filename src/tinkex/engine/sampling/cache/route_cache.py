"""The experts that cached tokens were sent to, kept by page like their keys and values.

So a cached prefix, a forked sample and a recomputed page have the routes that go with their keys
and values. About 400 bytes per token of a large mixture.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.messages import Routes
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.passes import Routed
from tinkex.engine.to_device import to_device


class RouteCache:
    def __init__(self, config: ModelConfig, pages: int, size: int, device: torch.device) -> None:
        """For so many pages besides the scratch page, of `size` tokens each."""
        mixtures = config.mixtures
        (first, *_) = mixtures.values()
        self._dtype = torch.uint8 if first.routed <= 256 else torch.int16
        shape = (len(mixtures), (pages + 1) * size, first.active)
        self._store = torch.zeros(shape, dtype=self._dtype, device=device)
        self._size, self._device = size, device

    def noting(self, places: Tensor) -> Routed:
        """Takes the choices of a pass's tokens at `places`, which are page · size + offset, layer
        by layer, and puts them all at once."""
        found: list[Tensor] = []

        def note(_: int, experts: Tensor) -> None:
            found.append(experts)
            if len(found) == len(self._store):
                chosen = torch.stack(found).to(self._dtype)
                self._store.index_copy_(1, places.to(torch.int64), chosen)

        return note

    def copy_page(self, source: int, target: int) -> None:
        pages = self._store.view(len(self._store), -1, self._size, self._store.shape[-1])
        pages[:, target].copy_(pages[:, source])

    def read(self, pages: Sequence[int], tokens: int) -> Routes:
        """Routes of the first tokens of a sequence with these pages."""
        starts = np.asarray(pages[: -(-tokens // self._size)], np.int64) * self._size
        places = (starts[:, None] + np.arange(self._size)).reshape(-1)[:tokens]
        found = self._store.index_select(1, to_device(places, self._device))
        routes: Routes = found.transpose(0, 1).contiguous().cpu().numpy()
        return routes
