"""The recurrent layers of a training pass: every packed sequence starts from nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tinkex.engine.model.block_configs import GatedDeltaConfig
from tinkex.engine.model.linear.delta import DeltaInputs, causal_conv, delta_rule, heads_of
from tinkex.engine.model.linear.stretches import Stretches
from tinkex.engine.model.passes import Recur


def packed_recurrence(lengths: Sequence[int], device: torch.device, triton: bool) -> Recur:
    """A `Recur` for sequences of these lengths laid end to end."""
    if not triton:
        return PackedRecurrence(lengths, device)
    from tinkex.engine.training.device_recurrence import DeviceRecurrence

    return DeviceRecurrence(lengths, device)


class PackedRecurrence(Recur):
    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._stretches = Stretches(lengths, device)

    def heads(
        self, layer: int, channels: Tensor, weight: Tensor, config: GatedDeltaConfig
    ) -> tuple[Tensor, Tensor, Tensor]:
        return heads_of(causal_conv(channels, weight, self._stretches), config)

    def delta(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor
    ) -> Tensor:
        return delta_rule(DeltaInputs.by_value_head(q, k, v, decay, write), self._stretches)
