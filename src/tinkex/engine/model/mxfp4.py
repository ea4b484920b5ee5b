"""MXFP4: blocks of 32 numbers of 4 bits that share a power of two, as gpt-oss ships its experts.

A byte holds two numbers, the first in its low half. A scale is an exponent, 127 more than it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32
MOST = 252
"""The largest scale whose numbers bfloat16 holds; 255 stands for no number."""

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def widen(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """[…, blocks, 16] bytes and […, blocks] scales to […, blocks · 32]; exact in bfloat16."""
    values = torch.tensor([*_VALUES, *(-value for value in _VALUES)], dtype=dtype)
    values = values.to(blocks.device)
    pairs = torch.stack([blocks & 15, blocks >> 4], dim=-1).to(torch.int32)
    numbers = values[pairs].flatten(-2)
    exponents = (scales.to(torch.int32) - 127)[..., None]
    return torch.ldexp(numbers, exponents).to(dtype).flatten(-2)
