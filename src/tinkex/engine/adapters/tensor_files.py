"""Files of tensors read in pieces: a run's gigabytes must not stop those that have a small step to
make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from tinkex.engine.pieces import Pieces

_PIECE = 64 << 20
"""Bytes read in one piece: 10 to 35 ms from the page cache."""


def read_tensors(path: Path, device: torch.device | str) -> Pieces[dict[str, Tensor]]:
    """All tensors of a safetensors file. Raises `OSError` and `SafetensorError`."""
    found: dict[str, Tensor] = {}
    unsaid = 0
    with safe_open(str(path), framework="pt", device=str(device)) as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            found[name] = yield from _read(file, name, torch.device(device))
            unsaid += found[name].nbytes
            if unsaid >= _PIECE:
                unsaid = 0
                yield
    return found


def _read(file: Any, name: str, device: torch.device) -> Pieces[Tensor]:
    """A tensor; a long vector, as optimizers' states are, in several pieces."""
    part = file.get_slice(name)
    shape = part.get_shape()
    whole = len(shape) != 1 or shape[0] <= _PIECE // 4
    if whole:
        tensor: Tensor = file.get_tensor(name)
        return tensor
    step, made = _PIECE // 4, None
    for start in range(0, shape[0], step):
        read: Tensor = part[start : start + step]
        if made is None:
            made = torch.empty(shape, dtype=read.dtype, device=device)
        made[start : start + step].copy_(read)
        yield
    assert made is not None
    return made
