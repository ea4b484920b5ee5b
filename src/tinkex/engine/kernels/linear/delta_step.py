"""Triton kernel for one token each of the gated delta rule, on states where they lie."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels.linear.delta import Inputs

_BLOCK = 32


def step(x: Inputs, store: Tensor, places: Tensor) -> Tensor:
    """[rows, heads, V]; moves the states of `store` float32 [places, heads, K, V] on by a token.
    `places` int32 [rows]."""
    rows, heads, value = x.v.shape
    key = x.k.shape[2]
    out = torch.empty(rows, heads, value, dtype=x.v.dtype, device=x.v.device)
    _step[triton.cdiv(value, _BLOCK), heads, rows](
        *x, places, store, out, x.q.stride(0), x.v.stride(0), HEADS=heads,
        TIMES=heads // x.q.shape[1], KEY=key, VALUE=value,
        PADDED=max(16, triton.next_power_of_2(key)), BV=_BLOCK, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _step(
    q,
    k,
    v,
    decay,
    write,
    places,
    store,
    out,
    q_stride,
    v_stride,
    HEADS: tl.constexpr,
    TIMES: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    PADDED: tl.constexpr,
    BV: tl.constexpr,
):
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    wide, part = tl.arange(0, PADDED), block * BV + tl.arange(0, BV)
    place = tl.load(places + row).to(tl.int64)
    cells = (place * HEADS + head) * KEY * VALUE + wide[:, None] * VALUE + part[None, :]
    known = (wide < KEY)[:, None] & (part < VALUE)[None, :]
    state = tl.load(store + cells, mask=known, other=0.0)
    lane = row * q_stride + (head // TIMES) * KEY + wide
    query = tl.load(q + lane, mask=wide < KEY, other=0.0).to(tl.float32)
    key = tl.load(k + lane, mask=wide < KEY, other=0.0).to(tl.float32)
    value = tl.load(v + row * v_stride + head * VALUE + part, mask=part < VALUE, other=0.0)
    state *= tl.exp(tl.load(decay + row * HEADS + head))
    missing = value.to(tl.float32) - tl.sum(key[:, None] * state, 0)
    state += key[:, None] * (missing * tl.load(write + row * HEADS + head))[None, :]
    tl.store(store + cells, state, mask=known)
    found = tl.sum(query[:, None] * state, 0)
    tl.store(out + (row * HEADS + head) * VALUE + part, found, mask=part < VALUE)
