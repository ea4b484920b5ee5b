"""Queries, keys and values of a token made ready by one kernel, forwards and backwards.

What `blocks.attention` does operation by operation elsewhere. Needs a GPU with Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tinkex.engine.model.block_configs import AttentionConfig

if TYPE_CHECKING:
    from tinkex.engine.kernels.heads import Shape

Norms = tuple[Tensor, Tensor] | None
Angles = tuple[Tensor, Tensor] | None


def ready(
    qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, angles: Angles,
    config: AttentionConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Queries and keys normed, rotated and scaled, values, and gates [N, heads · D] if any."""
    shape = shape_of(config)
    norms = None if q_norm is None or k_norm is None else (q_norm, k_norm)
    apply: Any = _Ready.apply
    turned, v, gate = apply(qkv.contiguous(), norms, angles, shape)
    q, k = turned.split_with_sizes([config.heads, config.kv_heads], dim=1)
    return q, k, v, gate.reshape(len(qkv), -1) if config.gated else None


def shape_of(config: AttentionConfig) -> Shape:
    """What the kernels are to know of the heads."""
    from tinkex.engine.kernels.heads import Shape

    extra = 1.0 if config.scale is None else config.scale * config.head_dim**0.5
    return Shape(
        config.heads, config.kv_heads, config.head_dim, config.norm_eps, extra, config.gated
    )


class _Ready(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, norms: Norms, angles: Angles, shape: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        from tinkex.engine.kernels import heads as kernel

        ctx.save_for_backward(qkv, *(norms or ()), *(angles or ()))
        ctx.facts = (norms is not None, shape)
        v, gate = _plain(qkv, shape)
        return kernel.ready(qkv, norms, angles, shape), v, gate

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        from tinkex.engine.kernels import heads as kernel

        normed, shape = ctx.facts
        qkv, *rest = ctx.saved_tensors
        norms: Norms = tuple(rest[:2]) if normed else None
        rest = rest[2:] if normed else rest
        out = torch.empty_like(qkv)
        assert grads[0] is not None
        angles: Angles = tuple(rest) if rest else None
        kernel.ready_backward(grads[0], qkv, norms, angles, shape, out)
        for target, grad in zip(_plain(out, shape), grads[1:], strict=True):
            if target is not None and grad is not None:
                target.copy_(grad)
        return out, None, None, None


def _plain(qkv: Tensor, shape: Any) -> tuple[Tensor, Tensor | None]:
    """Views of the columns that stay as they are: values, and gates."""
    heads = qkv.view(len(qkv), shape.sources, shape.size)
    values = heads[:, shape.sources - shape.kv_heads :]
    if not shape.gated:
        return values, None
    return values, heads[:, 1 : 2 * shape.heads : 2]
