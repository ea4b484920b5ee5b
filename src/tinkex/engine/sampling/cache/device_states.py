"""The recurrent layers of a sampler's steps on a GPU: kernels that move states on where they lie.

Needs Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tinkex.engine.kernels.linear import delta_step, short_conv
from tinkex.engine.kernels.linear.delta import Inputs
from tinkex.engine.model.block_configs import GatedDeltaConfig
from tinkex.engine.model.linear.device_delta import (
    DeviceStretches,
    convolved,
    delta_rule,
    split_heads,
)
from tinkex.engine.model.passes import Recur

if TYPE_CHECKING:
    from tinkex.engine.sampling.cache.recurrent_states import SequenceStates


class ChunkRecurrence(Recur):
    """For chunks of any lengths laid end to end."""

    def __init__(
        self, states: SequenceStates, places: Sequence[int], lengths: Sequence[int],
        device: torch.device,
    ) -> None:  # fmt: skip
        self._states = states
        self._at = DeviceStretches(lengths, device, places)

    def heads(
        self, layer: int, channels: Tensor, weight: Tensor, config: GatedDeltaConfig
    ) -> tuple[Tensor, Tensor, Tensor]:
        return convolved(channels, weight, config, self._at, self._states.windows[layer])

    def delta(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor
    ) -> Tensor:
        store = self._states.matrices[layer]
        return delta_rule(Inputs(q, k, v, decay, write), self._at, store)


class TokenRecurrence(Recur):
    """For one token each of rows whose states lie at `places`, int32 on the device."""

    def __init__(self, states: SequenceStates, places: Tensor) -> None:
        self._states, self._places = states, places

    def heads(
        self, layer: int, channels: Tensor, weight: Tensor, config: GatedDeltaConfig
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, store = short_conv.Heads(config.key_heads, config.key_dim), self._states.windows
        mixed = short_conv.step(channels, weight, heads, store[layer], self._places)
        return split_heads(mixed, config)

    def delta(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor
    ) -> Tensor:
        x = Inputs(q, k, v, decay, write)
        return delta_step.step(x, self._states.matrices[layer], self._places)
