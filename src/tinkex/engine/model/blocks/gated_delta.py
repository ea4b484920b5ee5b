"""Linear attention by the gated delta rule, as in Qwen3-Next and Qwen3.5.

State: of every sequence the last few tokens that the convolution still sees, and one matrix per
head; both are the pass's `recur` strategy's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from tinkex.engine.model.block_configs import DELTA_BA, DELTA_IN, DELTA_OUT, GatedDeltaConfig
from tinkex.engine.model.blocks.block import NamedProduct
from tinkex.engine.model.linear.gates import gated_norm, gates
from tinkex.engine.model.matrices.frozen import Matrix
from tinkex.engine.model.passes import Pass


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """`qkvz` are the four projections stacked, `ba` those of the write strength and the decay.
    `decay_log`, `decay_bias` and `conv` [channels, width] are float32."""

    config: GatedDeltaConfig  # heads and their sizes
    qkvz: Matrix  # queries, keys, values and the gate of the output
    ba: Matrix  # how much is written, how much is kept
    conv: Tensor  # over the last tokens of each channel
    decay_log: Tensor  # of each head, as a logarithm
    decay_bias: Tensor  # of each head
    norm: Tensor  # of the output, before its gate
    out: Matrix  # from the heads back to the hidden size

    def products(self) -> Iterator[NamedProduct]:
        yield DELTA_IN, self.qkvz, None
        yield DELTA_BA, self.ba, None
        yield DELTA_OUT, self.out, None

    def forward(self, layer: int, x: Tensor, onto: Tensor, run: Pass) -> Tensor:
        config = self.config
        assert run.recur is not None
        mixed = run.project(layer, DELTA_IN, x, self.qkvz, None)
        channels, z = mixed.split_with_sizes([config.channels, config.value_size], dim=1)
        q, k, v = run.recur.heads(layer, channels, self.conv, config)
        ba = run.project(layer, DELTA_BA, x, self.ba, None)
        decay, write = gates(ba, self.decay_log, self.decay_bias)
        found = run.recur.delta(layer, q, k, v, decay, write)
        gated = gated_norm(found, z, self.norm, config.norm_eps)
        return run.project_onto(onto, layer, DELTA_OUT, gated, self.out, None)
