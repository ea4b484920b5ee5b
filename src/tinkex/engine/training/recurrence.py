"""The recurrent layers of a training pass: every packed sequence starts from nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tinkex.engine.model.delta import DeltaInputs, causal_conv, delta_rule
from tinkex.engine.model.passes import Recur
from tinkex.engine.model.stretches import Stretches


class PackedRecurrence(Recur):
    """A `Recur` for sequences of these lengths laid end to end."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._stretches = Stretches(lengths, device)

    def convolve(self, layer: int, x: Tensor, weight: Tensor) -> Tensor:
        return causal_conv(x, weight, self._stretches)

    def delta(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor
    ) -> Tensor:
        return delta_rule(DeltaInputs(q, k, v, decay, write), self._stretches)
