"""The recurrent layers of a training pass on a GPU, by kernels. Needs Triton."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tinkex.engine.kernels.linear.delta import Inputs
from tinkex.engine.model.block_configs import GatedDeltaConfig
from tinkex.engine.model.linear.device_delta import DeviceStretches, convolved, delta_rule
from tinkex.engine.model.passes import Recur


class DeviceRecurrence(Recur):
    """A `Recur` for sequences of these lengths laid end to end."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._at = DeviceStretches(lengths, device)

    def heads(
        self, layer: int, channels: Tensor, weight: Tensor, config: GatedDeltaConfig
    ) -> tuple[Tensor, Tensor, Tensor]:
        return convolved(channels, weight, config, self._at)

    def delta(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor
    ) -> Tensor:
        return delta_rule(Inputs(q, k, v, decay, write), self._at)
