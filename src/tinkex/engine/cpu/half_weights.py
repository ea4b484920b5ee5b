"""Float32 products with matrices kept in half precision, where every value fits without loss.

Models are published in 16 bits, so their float32 matrices hold no more than that, and a product of
few rows takes as long as its matrix takes to read. Torch on x86 brings FBGEMM, which reads halves
and widens them as it multiplies: all sums stay float32. How it sums the last few rows may depend on
how many there are (without AVX-512 it does). Such numbers of rows are padded to one where it does
not, so that a row's sums never depend on other rows. Values of bfloat16 models are moved into the
range of halves by a power of two, which is exact.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ROWS = 128
"""Up to here it is no slower than the float32 matrix as it is: benchmarks/engine_products."""

FREE_ROWS = 4
"""A product of this many rows takes hardly longer than one of a single row: the same benchmark."""

_TAIL = 32
"""Rows beyond `ROWS` that may be filled up to."""

_TOP = 15
"""Scaled values lie below two to this power; halves end just under 2 ** 16."""

_LOSS = 2.0**-32
"""Of a row's largest value: what rounding may change any. A float32 sum shows nothing below
2 ** -24 of it, and a matrix that has more than 16 bits loses 2 ** -12."""


class HalfProduct:
    """x @ weight.T + bias for a matrix that fits."""

    def __init__(self, weight: Tensor, bias: Tensor | None, exponent: int) -> None:
        """`exponent` is what `fitting_exponent` said of the weight."""
        ops: Any = torch.ops.quantized
        scaled = weight if exponent == 0 else weight * 2.0**exponent
        self._packed = ops.linear_prepack_fp16(scaled, bias)
        self._linear = ops.linear_dynamic_fp16.default
        self._unscale = 2.0**-exponent

    def __call__(self, x: Tensor) -> Tensor:
        if self._unscale != 1.0:
            x = x * self._unscale
        rows = len(x)
        missing = _filled_up()[rows] - rows if rows <= ROWS else 0
        if missing:
            x = F.pad(x, (0, 0, 0, missing))
        result: Tensor = self._linear(x, self._packed)
        return result[:rows] if missing else result


def fitting_exponent(weight: Tensor) -> int | None:
    """The power of two by which the matrix, scaled, is one of halves; None if there is none."""
    if torch.equal(weight.half().float(), weight):
        return 0
    largest = weight.abs().amax(1)
    top = largest.amax().item()
    if not 0.0 < top < math.inf:
        return None
    exponent = _TOP - math.frexp(top)[1]
    scaled = weight * 2.0**exponent
    lost = (scaled.half().float() - scaled).abs().amax(1)
    return exponent if bool((lost <= largest * (_LOSS * 2.0**exponent)).all()) else None


@functools.cache
def _filled_up() -> tuple[int, ...]:
    """For every number of rows up to `ROWS`, the next at which each row has the sums it has among
    others. Raises RuntimeError if there is none."""
    draw = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(rows, 64, generator=draw) for rows in (32, ROWS + _TAIL))
    packed = torch.ops.quantized.linear_prepack_fp16(weight.half().float(), None)
    together = torch.ops.quantized.linear_dynamic_fp16(x, packed)
    steady = [
        rows
        for rows in range(1, len(x))
        if torch.equal(torch.ops.quantized.linear_dynamic_fp16(x[:rows], packed), together[:rows])
    ]
    found = [next((s for s in steady if s >= rows), None) for rows in range(ROWS + 1)]
    if None in found:
        raise RuntimeError("sums of halves depend on the number of rows")
    return tuple(0 if rows == 0 else int(to or 0) for rows, to in enumerate(found))


@functools.cache
def halves_work() -> bool:
    """Whether this build of torch can, on this processor, tried on small products."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 96, generator=draw).half().float()
    x, bias = torch.randn(3, 96, generator=draw), torch.randn(48, generator=draw)
    try:
        found = HalfProduct(weight, bias, 0)(x)
    except (RuntimeError, AttributeError):  # not on this processor, or not in this build
        return False
    return torch.allclose(found, F.linear(x, weight, bias), atol=1e-4)
