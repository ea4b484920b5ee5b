"""Triton kernels that norm each head of queries and keys and rotate it, in one pass over them.

Done operation by operation this is a dozen launches a layer, forwards and backwards, each over the
same few megabytes. `ops` uses them where Triton is there and says what they compute.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def forward(
    x: Tensor, gains: tuple[Tensor, Tensor], cos: Tensor, sin: Tensor, eps: float, queries: int
) -> tuple[Tensor, Tensor]:
    """The turned heads, contiguous, and 1/rms of each head in float32."""
    tokens, heads, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    scale = torch.empty(tokens, heads, dtype=torch.float32, device=x.device)
    _forward[(tokens,)](
        x, *gains, cos, sin, out, scale, eps, queries, heads, x.stride(0), x.stride(1),
        HALF=size // 2, HEADS=triton.next_power_of_2(heads),
        BLOCK=triton.next_power_of_2(size // 2),
    )  # fmt: skip
    return out, scale


def backward(
    grad: Tensor, x: Tensor, gains: tuple[Tensor, Tensor], cos: Tensor, sin: Tensor,
    scale: Tensor, queries: int,
) -> Tensor:  # fmt: skip
    """The gradient by `x`, contiguous."""
    tokens, heads, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _backward[(tokens,)](
        grad, x, *gains, cos, sin, scale, out, queries, heads, x.stride(0), x.stride(1),
        grad.stride(0), grad.stride(1),
        HALF=size // 2, HEADS=triton.next_power_of_2(heads),
        BLOCK=triton.next_power_of_2(size // 2),
    )  # fmt: skip
    return out


@triton.jit
def _gain(queries_gain, keys_gain, rows, places, queries, HALF: tl.constexpr):
    inside = places < HALF
    of_queries = tl.load(queries_gain + places, mask=inside, other=0.0).to(tl.float32)
    of_keys = tl.load(keys_gain + places, mask=inside, other=0.0).to(tl.float32)
    return tl.where(rows[:, None] < queries, of_queries[None, :], of_keys[None, :])


@triton.jit
def _angles(cos, sin, token, places, HALF: tl.constexpr):
    real = tl.load(cos + token * HALF + places, mask=places < HALF, other=0.0).to(tl.float32)
    turn = tl.load(sin + token * HALF + places, mask=places < HALF, other=0.0).to(tl.float32)
    return real[None, :], turn[None, :]


@triton.jit
def _forward(
    x, queries_gain, keys_gain, cos, sin, out, scale, eps, queries, heads, token_stride,
    head_stride, HALF: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    places, rows = tl.arange(0, BLOCK), tl.arange(0, HEADS)
    inside = (rows[:, None] < heads) & (places[None, :] < HALF)
    start = token * token_stride + rows[:, None] * head_stride + places[None, :]
    first = tl.load(x + start, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + start + HALF, mask=inside, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(first * first + second * second, axis=1) / (2 * HALF) + eps)
    tl.store(scale + token * heads + rows, inverse, mask=rows < heads)
    first *= inverse[:, None] * _gain(queries_gain, keys_gain, rows, places, queries, HALF)
    second *= inverse[:, None] * _gain(
        queries_gain + HALF, keys_gain + HALF, rows, places, queries, HALF
    )
    real, turn = _angles(cos, sin, token, places, HALF)
    target = token * heads * 2 * HALF + rows[:, None] * 2 * HALF + places[None, :]
    tl.store(out + target, first * real - second * turn, mask=inside)
    tl.store(out + target + HALF, second * real + first * turn, mask=inside)


@triton.jit
def _backward(
    grad, x, queries_gain, keys_gain, cos, sin, scale, out, queries, heads, token_stride,
    head_stride, grad_token_stride, grad_head_stride,
    HALF: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    places, rows = tl.arange(0, BLOCK), tl.arange(0, HEADS)
    inside = (rows[:, None] < heads) & (places[None, :] < HALF)
    given = token * grad_token_stride + rows[:, None] * grad_head_stride + places[None, :]
    to_first = tl.load(grad + given, mask=inside, other=0.0).to(tl.float32)
    to_second = tl.load(grad + given + HALF, mask=inside, other=0.0).to(tl.float32)
    real, turn = _angles(cos, sin, token, places, HALF)
    first_along = (to_first * real + to_second * turn) * _gain(
        queries_gain, keys_gain, rows, places, queries, HALF
    )
    second_along = (to_second * real - to_first * turn) * _gain(
        queries_gain + HALF, keys_gain + HALF, rows, places, queries, HALF
    )
    inverse = tl.load(scale + token * heads + rows, mask=rows < heads, other=0.0)[:, None]
    start = token * token_stride + rows[:, None] * head_stride + places[None, :]
    first = tl.load(x + start, mask=inside, other=0.0).to(tl.float32) * inverse
    second = tl.load(x + start + HALF, mask=inside, other=0.0).to(tl.float32) * inverse
    inner = (tl.sum(first_along * first + second_along * second, axis=1) / (2 * HALF))[:, None]
    target = token * heads * 2 * HALF + rows[:, None] * 2 * HALF + places[None, :]
    tl.store(out + target, (first_along - first * inner) * inverse, mask=inside)
    tl.store(out + target + HALF, (second_along - second * inner) * inverse, mask=inside)
