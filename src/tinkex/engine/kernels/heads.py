"""Triton kernels that make queries and keys ready: normed by head, then rotated, in one pass.

Queries, keys and values of a token lie side by side, [N, heads, D]; values pass through. With gates
each query is followed by its gate, [N, 2 · heads, D] in all, as Qwen3.5 projects them.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels import dependent_launch


@dataclass(frozen=True, slots=True)
class Shape:
    heads: int  # of queries
    kv_heads: int  # of keys and of values
    size: int  # of one head
    eps: float  # of the norms
    scale: float
    """Of queries."""
    gated: bool  # a gate as wide as the queries lies beside them

    @property
    def turned(self) -> int:
        return self.heads + self.kv_heads

    @property
    def sources(self) -> int:
        """Heads of a token as they were projected."""
        return self.heads * (2 if self.gated else 1) + 2 * self.kv_heads


def ready(
    x: Tensor, norms: tuple[Tensor, Tensor] | None, angles: tuple[Tensor, Tensor] | None,
    shape: Shape,
) -> Tensor:  # fmt: skip
    """Queries and keys [N, heads + kv heads, D]; x [N, sources · D] dense."""
    tokens = len(x)
    out = torch.empty(tokens, shape.turned, shape.size, dtype=x.dtype, device=x.device)
    _ready[tokens, triton.cdiv(shape.turned, _rows(shape))](
        x, out, x, *(norms or (x, x)), *(angles or (x, x)), shape.eps, shape.scale,
        **_constants(norms, angles, shape), BACK=False, **dependent_launch.options(),
    )  # fmt: skip
    return out


def ready_backward(
    grad: Tensor, x: Tensor, norms: tuple[Tensor, Tensor] | None,
    angles: tuple[Tensor, Tensor] | None, shape: Shape, out: Tensor,
) -> None:  # fmt: skip
    """Write to `out` [N, sources · D] the gradient of the queries' and keys' columns."""
    _ready[len(x), triton.cdiv(shape.turned, _rows(shape))](
        x, out, grad.contiguous(), *(norms or (x, x)), *(angles or (x, x)), shape.eps, shape.scale,
        **_constants(norms, angles, shape), BACK=True, CHAINED=False,
    )  # fmt: skip


def _rows(shape: Shape) -> int:
    return int(min(16, triton.next_power_of_2(shape.turned)))


def _constants(
    norms: tuple[Tensor, Tensor] | None, angles: tuple[Tensor, Tensor] | None, shape: Shape
) -> dict[str, int | bool]:
    turned = 0 if angles is None else 2 * angles[0].shape[-1]
    return {
        "HEADS": shape.heads, "TURNED": shape.turned, "SOURCES": shape.sources, "SIZE": shape.size,
        "ROTATED": turned, "GATED": shape.gated, "NORMED": norms is not None, "ROWS": _rows(shape),
        "BLOCK": triton.next_power_of_2(shape.size),
    }  # fmt: skip


@triton.jit
def _ready(
    x,
    out,
    grad,
    q_norm,
    k_norm,
    cos,
    sin,
    eps,
    scale,
    HEADS: tl.constexpr,
    TURNED: tl.constexpr,
    SOURCES: tl.constexpr,
    SIZE: tl.constexpr,
    ROTATED: tl.constexpr,
    GATED: tl.constexpr,
    NORMED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BACK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    HALF: tl.constexpr = ROTATED // 2
    inside = (row < TURNED)[:, None] & (column < SIZE)[None, :]
    asks = row < HEADS
    source = row
    if GATED:
        source = tl.where(asks, 2 * row, row + HEADS)
    # Each number's partner in the rotation is read a second time: nothing moves between threads.
    other = tl.where(column < HALF, column + HALF, column - HALF)
    other = tl.where(column < ROTATED, other, column)
    here = token * SOURCES * SIZE + source[:, None] * SIZE
    there = token * TURNED * SIZE + row[:, None] * SIZE
    value = tl.load(x + here + column[None, :], mask=inside, other=0.0).to(tl.float32)
    factor = tl.where(asks, scale, 1.0)[:, None]
    inverse = tl.full([ROWS], 1.0, tl.float32)
    if NORMED:
        inverse = 1.0 / tl.sqrt(tl.sum(value * value, 1) / SIZE + eps)
        gain = _gain(q_norm, k_norm, asks, column, SIZE)
    if ROTATED > 0:
        lane = token * HALF + column % HALF
        turns = column < ROTATED
        real = tl.load(cos + lane, mask=turns, other=1.0).to(tl.float32)
        turn = tl.load(sin + lane, mask=turns, other=0.0).to(tl.float32)
        turn = tl.where(column < HALF, -turn, turn)
    if not BACK:
        if NORMED:
            value *= inverse[:, None] * gain
        if ROTATED > 0:
            partner = tl.load(x + here + other[None, :], mask=inside, other=0.0).to(tl.float32)
            if NORMED:
                partner *= inverse[:, None] * _gain(q_norm, k_norm, asks, other, SIZE)
            value = value * real[None, :] + partner * turn[None, :]
        tl.store(out + there + column[None, :], value * factor, mask=inside)
    else:
        dy = tl.load(grad + there + column[None, :], mask=inside, other=0.0).to(tl.float32)
        if ROTATED > 0:
            partner = tl.load(grad + there + other[None, :], mask=inside, other=0.0)
            dy = dy * real[None, :] - partner.to(tl.float32) * turn[None, :]
        dy *= factor
        if NORMED:
            normed = value * inverse[:, None]
            dy *= gain
            dy = (dy - normed * (tl.sum(dy * normed, 1) / SIZE)[:, None]) * inverse[:, None]
        tl.store(out + here + column[None, :], dy, mask=inside)


@triton.jit
def _gain(q_norm, k_norm, asks, column, SIZE: tl.constexpr):
    """The norms' scales, by row and column."""
    known = column < SIZE
    one = tl.load(q_norm + column, mask=known, other=0.0).to(tl.float32)
    two = tl.load(k_norm + column, mask=known, other=0.0).to(tl.float32)
    return tl.where(asks[:, None], one[None, :], two[None, :])
