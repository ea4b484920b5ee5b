"""Triton kernels for a mixture of experts over one token or a few: every pair by itself.

Where a step has so few tokens that their choices hardly meet, lists by expert (`few_experts`) cost
more than they save: here each program reads its rows of a pair's matrices once, straight through,
and the sum over a token's choices is made where its columns are.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels import dependent_launch
from tinkex.engine.kernels.mixtures.experts import SLOPE, joined
from tinkex.engine.kernels.mixtures.few_experts import (
    FewRoutes,
    Weight,
    biases,
    choose,
    parts_of,
    shared_part,
)
from tinkex.engine.kernels.mixtures.packed_tiles import packed_tile

TOKENS = 4
"""Up to here pairs go by themselves: of 32 among 128 experts three or four meet another."""

_UP_COLUMNS, _DOWN_COLUMNS = 8, 4
"""Few enough that one token keeps the whole device busy."""


def route(
    x: Tensor, router: Tensor, bias: Tensor | None, active: int, renormalise: bool
) -> FewRoutes:
    """As `few_experts.route` of x [N, hidden], of any dtype, times the router's float32 [experts,
    hidden]; nobody lists."""
    (tokens, hidden), experts = x.shape, router.shape[0]
    logits = torch.empty(tokens, experts, dtype=torch.float32, device=x.device)
    weights = torch.empty(tokens, active, dtype=torch.float32, device=x.device)
    chosen = torch.empty(tokens, active, dtype=torch.int32, device=x.device)
    _route[experts, tokens](
        x, router, router if bias is None else bias, logits, weights, chosen, _counters(x.device),
        x.stride(0), EXPERTS=experts, HIDDEN=hidden, BIASED=bias is not None,
        WIDTH=triton.next_power_of_2(hidden), PADDED=triton.next_power_of_2(experts),
        ACTIVE=active, SLOTS=triton.next_power_of_2(active), RENORMALISE=renormalise, num_warps=4,
        **dependent_launch.options(),
    )  # fmt: skip
    nobody = chosen[:0]
    return FewRoutes(weights, chosen, nobody, nobody)


@functools.cache
def _counters(device: torch.device) -> Tensor:
    """What `route` counts finished scores of a token in; all zero between two calls."""
    return torch.zeros(TOKENS, dtype=torch.int32, device=device)


def up(
    x: Tensor, weight: Weight, bias: Tensor | None, added: Tensor | None, routes: FewRoutes,
    limit: float | None,
) -> Tensor:  # fmt: skip
    """As `few_experts.up`."""
    (tokens, active), hidden = routes.weights.shape, x.shape[1]
    inner = weight.shape[1] // 2
    out = torch.empty(tokens * active, inner, dtype=x.dtype, device=x.device)
    matrix, scales = parts_of(weight)
    _up[triton.cdiv(inner, _UP_COLUMNS), tokens * active](
        x, matrix, scales, x if bias is None else bias, x if added is None else added,
        routes.weights, routes.experts, out, x.stride(0), limit or 0.0, HIDDEN=hidden, INNER=inner,
        ACTIVE=active, BIASED=bias is not None, ADDED=added is not None,
        CLAMPED=limit is not None, PACKED=scales is not matrix, SLOPE=SLOPE, BN=_UP_COLUMNS,
        BK=_depth(hidden), num_warps=4, **dependent_launch.options(),
    )  # fmt: skip
    return out


def down_onto(
    onto: Tensor, inner: Tensor, weight: Weight, bias: Tensor | None, routes: FewRoutes,
    shared: Tensor | None, gate: Tensor | None,
) -> Tensor:  # fmt: skip
    """As `few_experts.down` and `few_experts.join` after it."""
    (tokens, active), (_, hidden, width) = routes.weights.shape, weight.shape
    out = torch.empty(tokens, hidden, dtype=onto.dtype, device=onto.device)
    matrix, scales = parts_of(weight)
    _down_onto[triton.cdiv(hidden, _DOWN_COLUMNS), tokens](
        onto, inner, matrix, scales, inner if bias is None else bias, routes.weights,
        routes.experts, inner if shared is None else shared, inner if gate is None else gate, out,
        onto.stride(0),
        HIDDEN=hidden, INNER=width, ACTIVE=active, BIASED=bias is not None,
        SHARED=shared is not None, PACKED=scales is not matrix, BN=_DOWN_COLUMNS,
        BK=_depth(width), num_warps=4, **dependent_launch.options(),
    )  # fmt: skip
    return out


def _depth(width: int) -> int:
    """What divides the width needs no mask."""
    return next((size for size in (512, 256, 128) if width % size == 0), 256)


@triton.jit
def _route(
    x,
    router,
    bias,
    logits,
    weights,
    chosen,
    counts,
    x_stride,
    EXPERTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BIASED: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ACTIVE: tl.constexpr,
    SLOTS: tl.constexpr,
    RENORMALISE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    expert, token = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part = tl.arange(0, WIDTH)
    line = tl.load(router + expert * HIDDEN + part, mask=part < HIDDEN, other=0.0)
    dependent_launch.begin(CHAINED)
    some = tl.load(x + token * x_stride + part, mask=part < HIDDEN, other=0.0)
    found = tl.sum(some.to(tl.float32) * line, 0)
    if BIASED:
        found += tl.load(bias + expert)
    tl.store(logits + token * EXPERTS + expert, found)
    tl.debug_barrier()
    # Whoever ends last has all of a token's scores before it.
    if tl.atomic_add(counts + token, 1, sem="acq_rel") == EXPERTS - 1:
        tl.store(counts + token, 0)
        lane = tl.arange(0, PADDED)
        all = tl.load(
            logits + token * EXPERTS + lane, mask=lane < EXPERTS, other=-float("inf"),
            cache_modifier=".cg",
        )  # fmt: skip
        choose(all, token, weights, chosen, chosen, chosen, 0, EXPERTS, PADDED, ACTIVE, SLOTS,
               RENORMALISE, LISTED=False)  # fmt: skip


@triton.jit
def _up(
    x,
    weight,
    scales,
    bias,
    added,
    weights,
    experts,
    out,
    x_stride,
    limit,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    ACTIVE: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    CLAMPED: tl.constexpr,
    PACKED: tl.constexpr,
    SLOPE: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    pair = tl.program_id(1).to(tl.int64)
    expert = tl.load(experts + pair).to(tl.int64)
    there = column < INNER
    lines = weight + expert * 2 * INNER * HIDDEN + column[:, None] * HIDDEN
    taken = x + (pair // ACTIVE) * x_stride
    gates = tl.zeros([BN, BK], tl.float32)
    ups = tl.zeros([BN, BK], tl.float32)
    for start in range(0, HIDDEN, BK):
        part = start + tl.arange(0, BK)
        known = there[:, None] & (part < HIDDEN)[None, :]
        some = tl.load(taken + part, mask=part < HIDDEN, other=0.0).to(tl.float32)
        if PACKED:
            row = expert * 2 * INNER + column[:, None]
            one = packed_tile(weight, scales, row, part[None, :], known, HIDDEN)
            two = packed_tile(weight, scales, row + INNER, part[None, :], known, HIDDEN)
        else:
            one = tl.load(lines + part[None, :], mask=known, other=0.0)
            two = tl.load(lines + INNER * HIDDEN + part[None, :], mask=known, other=0.0)
        gates += one.to(tl.float32) * some[None, :]
        ups += two.to(tl.float32) * some[None, :]
    first, second = tl.sum(gates, 1), tl.sum(ups, 1)
    if BIASED:
        one_bias, two_bias = biases(bias, expert, column, there, INNER)
        first += one_bias
        second += two_bias
    if ADDED:
        extra = added + pair * 2 * INNER + column
        first += tl.load(extra, mask=there, other=0.0).to(tl.float32)
        second += tl.load(extra + INNER, mask=there, other=0.0).to(tl.float32)
    found = joined(first, second, limit, CLAMPED, SLOPE)
    tl.store(out + pair * INNER + column, found * tl.load(weights + pair), mask=there)


@triton.jit
def _down_onto(
    onto,
    inner,
    weight,
    scales,
    bias,
    weights,
    experts,
    shared,
    gate,
    out,
    onto_stride,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    ACTIVE: tl.constexpr,
    BIASED: tl.constexpr,
    SHARED: tl.constexpr,
    PACKED: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    token = tl.program_id(1).to(tl.int64)
    there = column < HIDDEN
    sums = tl.zeros([BN, BK], tl.float32)
    total = tl.load(onto + token * onto_stride + column, mask=there, other=0.0).to(tl.float32)
    for choice in tl.static_range(ACTIVE):
        pair = token * ACTIVE + choice
        expert = tl.load(experts + pair).to(tl.int64)
        lines = weight + expert * HIDDEN * INNER + column[:, None] * INNER
        for start in range(0, INNER, BK):
            part = start + tl.arange(0, BK)
            some = tl.load(inner + pair * INNER + part, mask=part < INNER, other=0.0)
            known = there[:, None] & (part < INNER)[None, :]
            if PACKED:
                row = expert * HIDDEN + column[:, None]
                one = packed_tile(weight, scales, row, part[None, :], known, INNER)
            else:
                one = tl.load(lines + part[None, :], mask=known, other=0.0)
            sums += one.to(tl.float32) * some.to(tl.float32)[None, :]
        if BIASED:
            extra = tl.load(bias + expert * HIDDEN + column, mask=there, other=0.0)
            total += tl.load(weights + pair) * extra.to(tl.float32)
    total += tl.sum(sums, 1)
    if SHARED:
        total += shared_part(shared, gate, token, HIDDEN, column, there)
    tl.store(out + token * HIDDEN + column, total, mask=there)
