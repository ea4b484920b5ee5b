"""Linear attention by the gated delta rule, as in Qwen3-Next and Qwen3.5.

State: of every sequence the last few tokens that the convolution still sees, and one matrix per
head; both are the pass's `recur` strategy's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.model.block_configs import DELTA_BA, DELTA_IN, DELTA_OUT, GatedDeltaConfig
from tinkex.engine.model.blocks.block import NamedProduct
from tinkex.engine.model.ops import rms_norm, row_wise
from tinkex.engine.model.passes import Pass

_NORM_EPS = 1e-6
"""Of the lengths of queries and keys."""


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """`qkvz` are the four projections stacked, `ba` those of the write strength and the decay.
    `decay_log`, `decay_bias` and `conv` [channels, width] are float32."""

    config: GatedDeltaConfig
    qkvz: Tensor
    ba: Tensor
    conv: Tensor
    decay_log: Tensor
    decay_bias: Tensor
    norm: Tensor
    out: Tensor

    def products(self) -> Iterator[NamedProduct]:
        yield DELTA_IN, self.qkvz, None
        yield DELTA_BA, self.ba, None
        yield DELTA_OUT, self.out, None

    def forward(self, layer: int, x: Tensor, onto: Tensor, run: Pass) -> Tensor:
        config, tokens = self.config, len(x)
        assert run.recur is not None
        mixed = run.project(layer, DELTA_IN, x, self.qkvz, None)
        channels, z = mixed.split_with_sizes([config.channels, config.value_size], dim=1)
        q, k, v = self._queries_keys_values(run.recur.convolve(layer, channels, self.conv))
        write, decay = run.project(layer, DELTA_BA, x, self.ba, None).float().chunk(2, dim=1)
        decay = -self.decay_log.exp() * row_wise(F.softplus, decay + self.decay_bias)
        write = row_wise(torch.sigmoid, write)
        found = run.recur.delta(layer, q, k, v, decay, write).to(x.dtype)
        normed = rms_norm(found, self.norm, config.norm_eps)
        gated = normed.view(tokens, -1) * row_wise(F.silu, z.float()).to(x.dtype)
        return run.project_onto(onto, layer, DELTA_OUT, gated, self.out, None)

    def _queries_keys_values(self, channels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """By value head, in float32; queries and keys of length one, queries scaled."""
        config = self.config
        sizes = [config.key_size, config.key_size, config.value_size]
        q, k, v = row_wise(F.silu, channels).float().split_with_sizes(sizes, dim=1)
        q, k = (x.reshape(len(x), config.key_heads, config.key_dim) for x in (q, k))
        q, k = _unit(q) * config.key_dim**-0.5, _unit(k)
        times = config.value_heads // config.key_heads
        if times > 1:
            q, k = (x.repeat_interleave(times, dim=1) for x in (q, k))
        return q, k, v.reshape(len(v), config.value_heads, config.value_dim)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _NORM_EPS)
