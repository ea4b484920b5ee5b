"""Attention sinks as one more key, so that any attention kernel can take them.

Heads are made wider: there a query holds its head's sink, the sink's key a one and all other keys
nothing. The sink's value is zero.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_WIDER = 8
"""Attention kernels of a GPU want head sizes of a multiple of this."""


def sink_queries(q: Tensor, sinks: Tensor) -> Tensor:
    """[N, heads, D] made wider; their products are still to be scaled by 1/sqrt(D)."""
    asked = (sinks * q.shape[-1] ** 0.5).to(q.dtype)
    wide = F.pad(asked[:, None], (0, _WIDER - 1)).expand(len(q), -1, -1)
    return torch.cat([q, wide], dim=-1)


def sink_keys(keys: Tensor) -> Tensor:
    """[…, T, D] made wider, the sink in front: [… , 1 + T, wider D]."""
    size = keys.shape[-1]
    padded = F.pad(keys, (0, _WIDER, 1, 0))
    one = torch.zeros_like(padded[..., :1, :])
    one[..., size] = 1.0
    return torch.cat([one, padded[..., 1:, :]], dim=-2)


def sink_values(values: Tensor) -> Tensor:
    """[…, T, D] made as wide, nothing in front."""
    return F.pad(values, (0, _WIDER, 1, 0))


def attend_with_sinks(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, size: int, grouped: bool
) -> Tensor:
    """Attention of wider queries over plain keys [B, kv heads, T, size]; the mask [… , T] is of
    booleans, or added."""
    seen = F.pad(mask, (1, 0), value=True if mask.dtype == torch.bool else 0.0)
    found = F.scaled_dot_product_attention(
        q, sink_keys(keys), sink_values(values), attn_mask=seen, scale=size**-0.5,
        enable_gqa=grouped,
    )  # fmt: skip
    return found[..., :size]
