"""MXFP4: blocks of 32 numbers of 4 bits that share a power of two, as gpt-oss ships its experts.

A byte holds two numbers, the first in its low half. A scale is an exponent, 127 more than it is.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

BLOCK = 32
MOST = 252
"""The largest scale whose numbers bfloat16 holds; 255 stands for no number."""

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_PAIRS = {torch.float32: torch.int64, torch.bfloat16: torch.int32}
"""What is as wide as two numbers."""


def widen(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """[…, blocks, 16] bytes and […, blocks] scales to […, blocks · 32]; exact in bfloat16."""
    pairs, powers = _tables(dtype, blocks.device)
    numbers = pairs.index_select(0, blocks.flatten().int()).view(dtype)
    numbers = numbers.view(*blocks.shape[:-1], BLOCK)
    return numbers.mul_(powers[scales.int()][..., None]).flatten(-2)


@functools.cache
def _tables(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The two numbers of every byte side by side, as one; and the power of every scale."""
    values = torch.tensor([*_VALUES, *(-value for value in _VALUES)], dtype=dtype)
    every = torch.arange(256)
    pairs = torch.stack([values[every & 15], values[every >> 4]], dim=1)
    powers = torch.ldexp(torch.ones(256), every - 127).to(dtype)
    return pairs.view(_PAIRS[dtype]).flatten().to(device), powers.to(device)
