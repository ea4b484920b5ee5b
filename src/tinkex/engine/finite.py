"""Checks that loaded tensors hold no NaN or infinity: one reduction each, one wait for all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def trace(tensor: Tensor) -> Tensor:
    """A float32 scalar where the tensor is: zero if every number is finite, else NaN."""
    if not tensor.numel():
        return torch.zeros((), device=tensor.device)
    if tensor.is_floating_point() and tensor.element_size() == 1:
        tensor = tensor.float()  # torch finds no largest of eight bits
    low, high = tensor.aminmax()  # NaN where one is
    return (low.float() * 0.0).add_(high.float() * 0.0)


def all_finite(traces: Sequence[Tensor]) -> bool:
    """Waits for the device once."""
    return not traces or not bool(torch.stack(list(traces)).isnan().any())


def count_unfinite(tensor: Tensor) -> int:
    """How many numbers of it are NaN or infinite."""
    return int((~tensor.isfinite()).sum())
