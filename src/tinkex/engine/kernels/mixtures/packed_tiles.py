"""Tiles of experts' matrices that are kept in MXFP4, widened as a Triton kernel loads them.

See `model.mxfp4`: two numbers of four bits in a byte, the first in its low half, and a power of two
for 32 of them.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def packed_tile(blocks, scales, row, part, known, WIDTH: tl.constexpr):
    """float32, exact in bfloat16: numbers `part` of rows `row` of a matrix so wide."""
    pair = tl.load(blocks + row * (WIDTH // 2) + part // 2, mask=known, other=0).to(tl.int32)
    four = (pair >> ((part % 2) * 4)) & 15
    half = (four & 1).to(tl.float32) * 0.5
    exponent = (four >> 1) & 3
    size = tl.where(exponent == 0, half, (1.0 + half) * (1 << exponent).to(tl.float32) * 0.5)
    scale = tl.load(scales + row * (WIDTH // 32) + part // 32, mask=known, other=127).to(tl.int32)
    # The bits of the power itself; that of scale 0 is too small for the usual form.
    power = tl.where(scale == 0, 0x400000, scale << 23).to(tl.float32, bitcast=True)
    return tl.where(four >= 8, -size, size) * power
