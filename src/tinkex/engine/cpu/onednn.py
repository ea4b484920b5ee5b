"""Float32 products on the CPU through oneDNN, which torch brings but does not use for them.

A matrix may be given as it is, or packed once into oneDNN's own layout for few rows.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

LARGE_MATRIX = 1 << 17
"""Elements from which the longer way to a product, 20 µs at least, is worth it."""

PACKED_ROWS = 16
"""Rows the packed layout is chosen for. It serves others as well: benchmarks/engine_products."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias. Knows no gradients."""
    ops: Any = torch.ops.mkldnn
    result: Tensor = ops._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def pack(weight: Tensor) -> Tensor:
    """A copy that only `linear` can read."""
    ops: Any = torch.ops.mkldnn
    packed: Tensor = ops._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)
    return packed


@functools.cache
def works() -> bool:
    """Whether this build of torch can, tried on a small product."""
    if not torch.backends.mkldnn.is_available():
        return False
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    x, expected = weight[:4], F.linear(weight[:4], weight)
    try:
        found = (linear(x, pack(weight)), linear(x, weight), linear(x, weight.T.contiguous().T))
    except (RuntimeError, AttributeError):  # not on this processor, or not in this build
        return False
    return all(torch.allclose(each, expected, atol=1e-4) for each in found)
