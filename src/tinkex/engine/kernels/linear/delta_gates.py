"""Triton kernels for what stands around the delta rule: its gates, and the gated norm after it."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 16
_CELLS = 1024


def gates(ba: Tensor, decay_log: Tensor, decay_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Decay and write, float32 [N, heads], from write and decay side by side [N, 2 · heads]."""
    tokens, heads = ba.shape[0], ba.shape[1] // 2
    decay, write = torch.empty(2, tokens, heads, dtype=torch.float32, device=ba.device)
    _gates[(triton.cdiv(tokens * heads, _CELLS),)](
        ba, decay_log, decay_bias, decay, write, tokens * heads, heads, BLOCK=_CELLS
    )
    return decay, write


def gates_backward(
    d_decay: Tensor, d_write: Tensor, ba: Tensor, decay_log: Tensor, decay_bias: Tensor
) -> Tensor:
    """Of `ba`."""
    tokens, heads = ba.shape[0], ba.shape[1] // 2
    out = torch.empty_like(ba)
    _gates_backward[(triton.cdiv(tokens * heads, _CELLS),)](
        d_decay.contiguous(), d_write.contiguous(), ba, decay_log, decay_bias, out, tokens * heads,
        heads, BLOCK=_CELLS,
    )  # fmt: skip
    return out


def gated_norm(x: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm(x) · silu(z) over heads: x [N, heads, V] dense, z [N, heads · V] with any stride
    between tokens. [N, heads · V]."""
    tokens, heads, width = x.shape
    out = torch.empty(tokens, heads * width, dtype=x.dtype, device=x.device)
    _gated_norm[(triton.cdiv(tokens * heads, _ROWS),)](
        x, z, weight, out, tokens * heads, heads, z.stride(0), eps, WIDTH=width,
        BLOCK=triton.next_power_of_2(width), ROWS=_ROWS,
    )  # fmt: skip
    return out


def gated_norm_backward(
    grad: Tensor, x: Tensor, z: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Of x and of z."""
    tokens, heads, width = x.shape
    dx = torch.empty_like(x)
    dz = torch.empty(tokens, heads * width, dtype=x.dtype, device=x.device)
    _gated_norm_backward[(triton.cdiv(tokens * heads, _ROWS),)](
        grad.contiguous(), x, z, weight, dx, dz, tokens * heads, heads, z.stride(0), eps,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=_ROWS,
    )  # fmt: skip
    return dx, dz


@triton.jit
def _softplus(x):
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _inputs(ba, decay_log, decay_bias, cells, heads, BLOCK: tl.constexpr):
    """This program's cells, which of them there are and where in `ba` they lie; their write and
    decay as they come, and the rate of their head."""
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < cells
    token, head = cell // heads, cell % heads
    place = token.to(tl.int64) * 2 * heads + head
    strength = tl.load(ba + place, mask=inside, other=0.0).to(tl.float32)
    step = tl.load(ba + place + heads, mask=inside, other=0.0).to(tl.float32)
    step += tl.load(decay_bias + head, mask=inside, other=0.0)
    rate = tl.exp(tl.load(decay_log + head, mask=inside, other=0.0))
    return cell, inside, place, strength, step, rate


@triton.jit
def _gates(ba, decay_log, decay_bias, decay, write, cells, heads, BLOCK: tl.constexpr):
    cell, inside, _, strength, step, rate = _inputs(ba, decay_log, decay_bias, cells, heads, BLOCK)
    tl.store(decay + cell, -rate * _softplus(step), mask=inside)
    tl.store(write + cell, tl.sigmoid(strength), mask=inside)


@triton.jit
def _gates_backward(
    d_decay, d_write, ba, decay_log, decay_bias, out, cells, heads, BLOCK: tl.constexpr
):
    cell, inside, place, strength, step, rate = _inputs(
        ba, decay_log, decay_bias, cells, heads, BLOCK
    )
    share = tl.sigmoid(strength)
    to_decay = tl.load(d_decay + cell, mask=inside, other=0.0)
    to_write = tl.load(d_write + cell, mask=inside, other=0.0)
    tl.store(out + place, to_write * share * (1.0 - share), mask=inside)
    tl.store(out + place + heads, -to_decay * rate * tl.sigmoid(step), mask=inside)


@triton.jit
def _normed(
    x,
    z,
    weight,
    count,
    heads,
    z_stride,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """This program's cells, which of them there are, their values brought to size one and by what
    they were multiplied, their gates, and the norm's weight."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (column < WIDTH)[None, :]
    cells = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    value = tl.load(x + cells, mask=inside, other=0.0).to(tl.float32)
    gate_at = (row // heads).to(tl.int64) * z_stride + (row % heads) * WIDTH
    gate = tl.load(z + gate_at[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + eps)
    return cells, inside, value * inverse[:, None], inverse, gate, gain


@triton.jit
def _gated_norm(
    x,
    z,
    weight,
    out,
    count,
    heads,
    z_stride,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    cells, inside, normed, _, gate, gain = _normed(
        x, z, weight, count, heads, z_stride, eps, WIDTH, BLOCK, ROWS
    )
    tl.store(out + cells, normed * gain[None, :] * gate * tl.sigmoid(gate), mask=inside)


@triton.jit
def _gated_norm_backward(
    grad,
    x,
    z,
    weight,
    dx,
    dz,
    count,
    heads,
    z_stride,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    cells, inside, normed, inverse, gate, gain = _normed(
        x, z, weight, count, heads, z_stride, eps, WIDTH, BLOCK, ROWS
    )
    dy = tl.load(grad + cells, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    to_gate = dy * normed * gain[None, :] * share * (1.0 + gate * (1.0 - share))
    tl.store(dz + cells, to_gate, mask=inside)
    along = dy * gate * share * gain[None, :]
    inner = tl.sum(along * normed, 1) / WIDTH
    tl.store(dx + cells, (along - normed * inner[:, None]) * inverse[:, None], mask=inside)
