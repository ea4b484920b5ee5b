"""Triton kernels around the products of experts: the gate between them, and sums by token.

Rows are pairs of a token and one of its experts, in the order of experts (see `model.routes`).
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 1024
SLOPE = 1.702
"""Of the gate's sigmoid in gpt-oss."""


def gate(
    gate_up: Tensor, share: Tensor, bias: Tensor | None, experts: Tensor, limit: float | None
) -> Tensor:
    """[rows, inner]: gate and up [rows, 2 · inner] joined, times each row's share (float32).

    `bias` [experts, 2 · inner] is added by `experts` [rows] first. With a limit the gate is that of
    gpt-oss, else a SiLU.
    """
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(_COLUMNS, triton.next_power_of_2(width))
    _gate[rows, triton.cdiv(width, block)](
        gate_up, share, gate_up if bias is None else bias, experts, out, width, limit or 0.0,
        BIASED=bias is not None, CLAMPED=limit is not None, SLOPE=SLOPE, BLOCK=block,
    )  # fmt: skip
    return out


def gate_backward(
    grad: Tensor, gate_up: Tensor, share: Tensor, bias: Tensor | None, experts: Tensor,
    limit: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of `gate_up` and of `share`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out, to_share = torch.empty_like(gate_up), torch.empty_like(share)
    _gate_backward[(rows,)](
        grad.contiguous(), gate_up, share, gate_up if bias is None else bias, experts, out,
        to_share, limit or 0.0, WIDTH=width, BIASED=bias is not None, CLAMPED=limit is not None,
        SLOPE=SLOPE, BLOCK=min(_COLUMNS, triton.next_power_of_2(width)),
    )  # fmt: skip
    return out, to_share


def combine(rows: Tensor, places: Tensor) -> Tensor:
    """[N, width]: the sum of each token's rows, which lie at `places` [N, active]."""
    (tokens, active), width = places.shape, rows.shape[1]
    out = torch.empty(tokens, width, dtype=rows.dtype, device=rows.device)
    block = min(_COLUMNS, triton.next_power_of_2(width))
    _combine[tokens, triton.cdiv(width, block)](
        rows, places, out, width, ACTIVE=active, BLOCK=block
    )
    return out


@triton.jit
def _halves(
    gate_up,
    bias,
    expert,
    row,
    columns,
    inside,
    width,
    limit,
    BIASED: tl.constexpr,
    CLAMPED: tl.constexpr,
):
    """Gate and up of some columns, biases added, and whether each is within the limit."""
    start = row * 2 * width + columns
    first = tl.load(gate_up + start, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(gate_up + start + width, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        at = expert * 2 * width + columns
        first += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
        second += tl.load(bias + at + width, mask=inside, other=0.0).to(tl.float32)
    low, high = first <= limit, (second <= limit) & (second >= -limit)
    if CLAMPED:
        first = tl.minimum(first, limit)
        second = tl.minimum(tl.maximum(second, -limit), limit)
    return first, second, low, high


@triton.jit
def joined(first, second, limit, CLAMPED: tl.constexpr, SLOPE: tl.constexpr):
    """Gate and up as one: by a SiLU, or where there is a limit cut off and by gpt-oss's gate."""
    if CLAMPED:
        first = tl.minimum(first, limit)
        second = tl.minimum(tl.maximum(second, -limit), limit)
        found = (second + 1.0) * first * tl.sigmoid(first * SLOPE)
    else:
        found = first * tl.sigmoid(first) * second
    return found


@triton.jit
def _gate(
    gate_up,
    share,
    bias,
    experts,
    out,
    width,
    limit,
    BIASED: tl.constexpr,
    CLAMPED: tl.constexpr,
    SLOPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    expert = tl.load(experts + row).to(tl.int64)
    first, second, _, _ = _halves(
        gate_up, bias, expert, row, columns, inside, width, limit, BIASED, CLAMPED
    )
    found = joined(first, second, limit, CLAMPED, SLOPE)
    tl.store(out + row * width + columns, found * tl.load(share + row), mask=inside)


@triton.jit
def _gate_backward(
    grad,
    gate_up,
    share,
    bias,
    experts,
    out,
    to_share,
    limit,
    WIDTH: tl.constexpr,
    BIASED: tl.constexpr,
    CLAMPED: tl.constexpr,
    SLOPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    expert = tl.load(experts + row).to(tl.int64)
    weight = tl.load(share + row)
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(0, WIDTH, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        inside = columns < WIDTH
        first, second, low, high = _halves(
            gate_up, bias, expert, row, columns, inside, WIDTH, limit, BIASED, CLAMPED
        )
        dy = tl.load(grad + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
        if CLAMPED:
            part = tl.sigmoid(first * SLOPE)
            glow = first * part
            total += dy * (second + 1.0) * glow
            dy *= weight
            to_first = dy * (second + 1.0) * part * (1.0 + SLOPE * first * (1.0 - part))
            to_first = tl.where(low, to_first, 0.0)
            to_second = tl.where(high, dy * glow, 0.0)
        else:
            part = tl.sigmoid(first)
            glow = first * part
            total += dy * second * glow
            dy *= weight
            to_first = dy * second * part * (1.0 + first * (1.0 - part))
            to_second = dy * glow
        start = row * 2 * WIDTH + columns
        tl.store(out + start, to_first, mask=inside)
        tl.store(out + start + WIDTH, to_second, mask=inside)
    tl.store(to_share + row, tl.sum(total, 0))


@triton.jit
def _combine(rows, places, out, width, ACTIVE: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(ACTIVE):
        row = tl.load(places + token * ACTIVE + choice).to(tl.int64)
        total += tl.load(rows + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + columns, total, mask=inside)
