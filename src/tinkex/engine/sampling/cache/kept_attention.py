"""Attention of branches that decode together, over the keys and values that `kept_rows` keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from tinkex.engine.sampling.cache.kept_rows import KeptRows


class KeptAttention:
    """An `Attend` for a step that its rows follow."""

    def __init__(self, rows: KeptRows) -> None:
        self._rows = rows
        self.places = torch.from_numpy(rows.places)
        mask = rows.mask
        self._mask = torch.zeros(()) if mask is None else torch.from_numpy(mask)

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        found = self._rows.put(layer, torch.stack((k, v), 1).numpy())
        keys, values = map(torch.from_numpy, found)
        size = q.shape[-1]
        scores = torch.baddbmm(
            self._mask, q.reshape(len(keys), -1, size), keys.mT, alpha=size**-0.5
        )
        return torch.bmm(scores.softmax(-1), values).view(q.shape)
