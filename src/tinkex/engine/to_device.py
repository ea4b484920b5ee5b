"""Copies numbers from the host to a device without making the host wait."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """The array on the device.

    A plain copy to a GPU waits for all work queued there. From pinned memory it is queued itself,
    and the host goes on to queue what comes next.
    """
    host = array if isinstance(array, Tensor) else torch.from_numpy(array)
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
