"""Triton kernels for the operations between matrix products, on a GPU.

A profile of a training step shows why they exist: done operation by operation these take a third of
the time, all of it reading and writing the same rows again. `ops` uses them where Triton is there
and says what each computes; nothing else imports this module.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels import dependent_launch

_COLUMNS = 1024


def swiglu(gate_up: Tensor, plus: Tensor | None = None) -> Tensor:
    """Of gate_up + plus."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    _swiglu[rows, triton.cdiv(width, _COLUMNS)](
        gate_up, gate_up if plus is None else plus, out, width, PLUS=plus is not None,
        BLOCK=_COLUMNS, **dependent_launch.options(),
    )  # fmt: skip
    return out


def swiglu_backward(grad: Tensor, gate_up: Tensor) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty_like(gate_up)
    grid = (rows, triton.cdiv(width, _COLUMNS))
    _swiglu_backward[grid](grad.contiguous(), gate_up, out, width, BLOCK=_COLUMNS)
    return out


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The normed rows, and 1/rms of each in float32."""
    out = torch.empty_like(x, dtype=dtype)
    scale = torch.empty(x.shape[0], 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    _rms_norm[(x.shape[0],)](
        x, weight, out, scale, x.shape[1], eps, BLOCK=block, num_warps=8,
        **dependent_launch.options(),
    )  # fmt: skip
    return out, scale


def rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    out, block = torch.empty_like(x), triton.next_power_of_2(x.shape[1])
    _rms_norm_backward[(x.shape[0],)](
        grad.contiguous(), x, weight, scale, out, x.shape[1], BLOCK=block, num_warps=8
    )
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    """[N, heads, D], any strides but the last; `sign` -1 turns back."""
    tokens, heads, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _rotate[(tokens,)](
        x, cos, sin, out, sign, heads, x.stride(0), x.stride(1),
        HALF=size // 2, HEADS=triton.next_power_of_2(heads),
        BLOCK=triton.next_power_of_2(size // 2),
    )  # fmt: skip
    return out


@triton.jit
def _swiglu(
    gate_up,
    plus,
    out,
    width,
    PLUS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    start = row * 2 * width + columns
    gate = tl.load(gate_up + start, mask=inside).to(tl.float32)
    up = tl.load(gate_up + start + width, mask=inside).to(tl.float32)
    if PLUS:
        gate += tl.load(plus + start, mask=inside).to(tl.float32)
        up += tl.load(plus + start + width, mask=inside).to(tl.float32)
    tl.store(out + row * width + columns, gate * tl.sigmoid(gate) * up, mask=inside)


@triton.jit
def _swiglu_backward(
    grad,
    gate_up,
    out,
    width,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    start = row * 2 * width + columns
    gate = tl.load(gate_up + start, mask=inside).to(tl.float32)
    up = tl.load(gate_up + start + width, mask=inside).to(tl.float32)
    dy = tl.load(grad + row * width + columns, mask=inside).to(tl.float32)
    share = tl.sigmoid(gate)
    tl.store(out + start, dy * up * share * (1 + gate * (1 - share)), mask=inside)
    tl.store(out + start + width, dy * gate * share, mask=inside)


@triton.jit
def _rms_norm(
    x,
    weight,
    out,
    scale,
    width,
    eps,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = columns < width
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    dependent_launch.begin(CHAINED)
    value = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(value * value) / width + eps)
    tl.store(scale + row, inverse)
    tl.store(out + row * width + columns, value * inverse * gain, mask=inside)


@triton.jit
def _rms_norm_backward(
    grad,
    x,
    weight,
    scale,
    out,
    width,
    BLOCK: tl.constexpr,
):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = columns < width
    inverse = tl.load(scale + row)
    normed = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32) * inverse
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    along = tl.load(grad + row * width + columns, mask=inside, other=0.0).to(tl.float32) * gain
    inner = tl.sum(along * normed) / width
    tl.store(out + row * width + columns, (along - normed * inner) * inverse, mask=inside)


@triton.jit
def _rotate(
    x,
    cos,
    sin,
    out,
    sign,
    heads,
    token_stride,
    head_stride,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    places, rows = tl.arange(0, BLOCK), tl.arange(0, HEADS)
    inside = (rows[:, None] < heads) & (places[None, :] < HALF)
    real = tl.load(cos + token * HALF + places, mask=places < HALF, other=0.0).to(tl.float32)
    turn = tl.load(sin + token * HALF + places, mask=places < HALF, other=0.0).to(tl.float32) * sign
    start = token * token_stride + rows[:, None] * head_stride + places[None, :]
    first = tl.load(x + start, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + start + HALF, mask=inside, other=0.0).to(tl.float32)
    target = token * heads * 2 * HALF + rows[:, None] * 2 * HALF + places[None, :]
    tl.store(out + target, first * real[None, :] - second * turn[None, :], mask=inside)
    tl.store(out + target + HALF, second * real[None, :] + first * turn[None, :], mask=inside)
