"""Grouped-query attention: fused projections, optional norms of queries and keys, rotation.

State: keys and values of every token, kept by the pass's `attend` strategy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.model.block_configs import OUT, QKV, AttentionConfig
from tinkex.engine.model.blocks import head_ops
from tinkex.engine.model.blocks.block import NamedProduct
from tinkex.engine.model.matrices.frozen import Matrix
from tinkex.engine.model.ops import rms_norm, rotate, row_wise
from tinkex.engine.model.passes import Angles, AttendProjected, Pass


@dataclass(frozen=True, slots=True)
class Attention:
    """Matrices are [out, in]; q, k and v stacked."""

    config: AttentionConfig  # heads and their sizes
    qkv: Matrix  # of queries, keys and values
    o: Matrix  # from the heads back to the hidden size
    qkv_bias: Tensor | None = None  # where the family has one
    o_bias: Tensor | None = None  # where the family has one
    q_norm: Tensor | None = None  # of a head's query, where the family has one
    k_norm: Tensor | None = None  # of its key
    sinks: Tensor | None = None
    """A logit for each head that takes weight and gives nothing, where the family has them."""

    def products(self) -> Iterator[NamedProduct]:
        yield QKV, self.qkv, self.qkv_bias
        yield OUT, self.o, self.o_bias

    def forward(self, layer: int, x: Tensor, onto: Tensor, run: Pass) -> Tensor:
        if isinstance(run.attend, AttendProjected) and not self.config.wide_norms:
            mixed = self._at_once(layer, x, run, run.attend)
            return run.project_onto(onto, layer, OUT, mixed, self.o, self.o_bias)
        qkv = run.project(layer, QKV, x, self.qkv, self.qkv_bias)
        q, k, v, gate = self._heads(qkv, run.angles[layer])
        mixed = run.attend(layer, q, k, v, self.sinks).reshape(x.shape[0], self.config.q_size)
        if gate is not None:
            mixed = mixed * row_wise(torch.sigmoid, gate)
        return run.project_onto(onto, layer, OUT, mixed, self.o, self.o_bias)

    def _at_once(self, layer: int, x: Tensor, run: Pass, attend: AttendProjected) -> Tensor:
        qkv = run.project_apart(layer, QKV, x, self.qkv, self.qkv_bias)
        norms = None if self.q_norm is None or self.k_norm is None else (self.q_norm, self.k_norm)
        return attend.projected(layer, qkv, norms, run.angles[layer], self.sinks, self.config)

    def _heads(
        self, qkv: Tensor, angles: Angles | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values by head, and the queries' gates."""
        if runs_triton(qkv) and not self.config.wide_norms:
            return head_ops.ready(qkv, self.q_norm, self.k_norm, angles, self.config)
        gate = None
        if self.config.gated:
            qkv, gate = self._without_gate(qkv)
        return (*self._queries_keys_values(qkv, angles), gate)

    def _without_gate(self, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, keys and values side by side, and the gates that lay between the queries."""
        config, count = self.config, len(qkv)
        queries, rest = qkv.split_with_sizes([2 * config.q_size, 2 * config.kv_size], dim=1)
        q, gate = queries.view(count, config.heads, -1).chunk(2, dim=-1)
        joined = torch.cat([q.reshape(count, config.q_size), rest], dim=1)
        return joined, gate.reshape(count, config.q_size)

    def _queries_keys_values(
        self, qkv: Tensor, angles: Angles | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        heads = qkv.view(qkv.shape[0], -1, config.head_dim)
        turned, v = heads.split_with_sizes([config.heads + config.kv_heads, config.kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            turned = self._normed(turned, self.q_norm, self.k_norm)
        if angles is not None:
            assert config.rope is not None
            turned = _rotated(turned, config.rope.head_dim, *angles)
        q, k = turned.split_with_sizes([config.heads, config.kv_heads], dim=1)
        if config.scale is not None:
            q = q * (config.scale * config.head_dim**0.5)
        return q, k, v

    def _normed(self, x: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        """Queries and keys [N, heads, D], each with its norm: of a head, or of all as one."""
        counts, eps = [self.config.heads, self.config.kv_heads], self.config.norm_eps
        if not self.config.wide_norms:
            weights = [w.expand(n, -1) for w, n in zip((q_norm, k_norm), counts, strict=True)]
            return rms_norm(x, torch.cat(weights), eps)
        q, k = x.split_with_sizes(counts, dim=1)
        q, k = (rms_norm(x.flatten(1), w, eps).view(x.shape) for x, w in ((q, q_norm), (k, k_norm)))
        return torch.cat([q, k], dim=1)


def _rotated(x: Tensor, size: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first `size` of each head."""
    if size == x.shape[-1]:
        return rotate(x, cos, sin)
    return torch.cat([rotate(x[..., :size], cos, sin), x[..., size:]], dim=-1)
