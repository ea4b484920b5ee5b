"""Triton kernels for a mixture of experts over few tokens, as in a decode step.

A pair is a token and one of its choices, number token · active + choice. Nothing is sorted: each
expert has a list of its pairs, and reads its matrices once for all of them. What a program writes
goes by pair, so no result depends on the order in which a list was filled.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels import dependent_launch
from tinkex.engine.kernels.mixtures.experts import SLOPE, joined
from tinkex.engine.kernels.mixtures.packed_tiles import packed_tile

_COLUMNS = 1024


class Packed(Protocol):
    """A stack in MXFP4: see `model.matrices.packed_experts`."""

    @property
    def blocks(self) -> Tensor: ...
    @property
    def scales(self) -> Tensor: ...
    @property
    def shape(self) -> tuple[int, int, int]: ...


Weight: TypeAlias = Tensor | Packed


class FewRoutes(NamedTuple):
    """`weights` float32 and `experts` int32 [N, active]; each expert's pairs in `members` int32
    [experts, N], so many as `counts` int32 [experts] says. Both are empty where nobody lists."""

    weights: Tensor
    experts: Tensor
    members: Tensor
    counts: Tensor


def route(logits: Tensor, active: int, renormalise: bool) -> FewRoutes:
    """The `active` likeliest experts of each token, logits float32 [N, experts]."""
    tokens, experts = logits.shape
    device = logits.device
    found = FewRoutes(
        torch.empty(tokens, active, dtype=torch.float32, device=device),
        torch.empty(tokens, active, dtype=torch.int32, device=device),
        torch.empty(experts, tokens, dtype=torch.int32, device=device),
        torch.zeros(experts, dtype=torch.int32, device=device),
    )
    _route[(tokens,)](
        logits, *found, tokens, EXPERTS=experts, PADDED=triton.next_power_of_2(experts),
        ACTIVE=active, SLOTS=triton.next_power_of_2(active), RENORMALISE=renormalise, num_warps=1,
        **dependent_launch.options(),
    )  # fmt: skip
    return found


def up(
    x: Tensor, weight: Weight, bias: Tensor | None, added: Tensor | None, routes: FewRoutes,
    limit: float | None,
) -> Tensor:  # fmt: skip
    """[pairs, inner]: gate and up of every pair, `added` [pairs, 2 · inner] to them, joined as by
    `experts.gate`. `weight` [experts, 2 · inner, hidden]."""
    (tokens, active), hidden = routes.weights.shape, x.shape[1]
    experts, inner = weight.shape[0], weight.shape[1] // 2
    out = torch.empty(tokens * active, inner, dtype=x.dtype, device=x.device)
    columns = _columns(tokens * active, experts)
    matrix, scales = parts_of(weight)
    _up[triton.cdiv(inner, columns), experts](
        x, matrix, scales, x if bias is None else bias, x if added is None else added,
        routes.weights, routes.members, routes.counts, out, tokens, x.stride(0), limit or 0.0,
        HIDDEN=hidden, INNER=inner, ACTIVE=active, BIASED=bias is not None, ADDED=added is not None,
        CLAMPED=limit is not None, PACKED=scales is not matrix, SLOPE=SLOPE,
        ROWS=_rows(tokens * active, experts), BN=columns, BK=_depth(hidden), num_warps=4,
        num_stages=4, **dependent_launch.options(),
    )  # fmt: skip
    return out


def down_onto(
    onto: Tensor, inner: Tensor, weight: Weight, bias: Tensor | None, routes: FewRoutes,
    shared: Tensor | None, gate: Tensor | None,
) -> Tensor:  # fmt: skip
    """`onto` [N, hidden] plus what each token's pairs find by `down`, see `join`."""
    rows = down(inner, weight, bias, routes)
    return join(onto, rows, routes.weights.shape[1], shared, gate)


def parts_of(weight: Weight) -> tuple[Tensor, Tensor]:
    """A stack and its scales; a plain one has none, and stands in for them."""
    return (weight, weight) if isinstance(weight, Tensor) else (weight.blocks, weight.scales)


def down(inner: Tensor, weight: Weight, bias: Tensor | None, routes: FewRoutes) -> Tensor:
    """[pairs, hidden]; `weight` [experts, hidden, inner]."""
    tokens, active = routes.weights.shape
    experts, hidden, width = weight.shape
    out = torch.empty(tokens * active, hidden, dtype=inner.dtype, device=inner.device)
    columns = 2 * _columns(tokens * active, experts)
    matrix, scales = parts_of(weight)
    _down[triton.cdiv(hidden, columns), experts](
        inner, matrix, scales, inner if bias is None else bias, routes.weights, routes.members,
        routes.counts, out, tokens, HIDDEN=hidden, INNER=width, BIASED=bias is not None,
        PACKED=scales is not matrix, ROWS=_rows(tokens * active, experts), BN=columns,
        BK=_depth(width), num_warps=4, num_stages=4, **dependent_launch.options(),
    )  # fmt: skip
    return out


def join(
    onto: Tensor, rows: Tensor, active: int, shared: Tensor | None, gate: Tensor | None
) -> Tensor:
    """`onto` [N, hidden] plus the sum of each token's pairs, plus `shared` [N, hidden] times the
    sigmoid of `gate` [N]."""
    tokens, width = onto.shape
    out = torch.empty(tokens, width, dtype=onto.dtype, device=onto.device)
    block = min(_COLUMNS, triton.next_power_of_2(width))
    _join[tokens, triton.cdiv(width, block)](
        onto, rows, rows if shared is None else shared, rows if gate is None else gate, out, width,
        onto.stride(0), ACTIVE=active, SHARED=shared is not None, BLOCK=block,
        **dependent_launch.options(),
    )  # fmt: skip
    return out


def _rows(pairs: int, experts: int) -> int:
    """Pairs of an expert that are multiplied together; matrix units take 16 at least."""
    return int(min(64, max(16, triton.next_power_of_2(pairs // experts))))


def _columns(pairs: int, experts: int) -> int:
    """Columns of a program: few where few experts are hit, so that the device is busy all over."""
    return 16 if pairs <= 16 else 32


def _depth(width: int) -> int:
    """What divides the width needs no mask, and is read in whole lines."""
    return next((size for size in (128, 64, 32) if width % size == 0), 64)


@triton.jit(do_not_specialize=["tokens"])
def _route(
    logits,
    weights,
    experts,
    members,
    counts,
    tokens,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    ACTIVE: tl.constexpr,
    SLOTS: tl.constexpr,
    RENORMALISE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    token = tl.program_id(0)
    lane = tl.arange(0, PADDED)
    x = tl.load(logits + token * EXPERTS + lane, mask=lane < EXPERTS, other=-float("inf"))
    choose(x, token, weights, experts, members, counts, tokens, EXPERTS, PADDED, ACTIVE, SLOTS,
           RENORMALISE, LISTED=True)  # fmt: skip


@triton.jit
def choose(
    x, token, weights, experts, members, counts, tokens, EXPERTS: tl.constexpr,
    PADDED: tl.constexpr, ACTIVE: tl.constexpr, SLOTS: tl.constexpr, RENORMALISE: tl.constexpr,
    LISTED: tl.constexpr,
):  # fmt: skip
    """Write the likeliest experts of a token whose logits [PADDED] these are, and their weights."""
    lane, slot = tl.arange(0, PADDED), tl.arange(0, SLOTS)
    top = tl.max(x, 0)
    left = x
    chosen = tl.full([SLOTS], -float("inf"), tl.float32)
    for choice in tl.static_range(ACTIVE):
        which = tl.minimum(tl.argmax(left, 0), EXPERTS - 1)
        chosen = tl.where(slot == choice, tl.max(left, 0), chosen)
        left = tl.where(lane == which, -float("inf"), left)
        pair = token * ACTIVE + choice
        tl.store(experts + pair, which)
        if LISTED:
            rank = tl.atomic_add(counts + which, 1)
            # Numbers that are none could choose an expert twice: nothing goes beyond the list.
            tl.store(members + which * tokens + rank, pair, mask=rank < tokens)
    weight = tl.where(slot < ACTIVE, tl.exp(chosen - top), 0.0)
    total = tl.sum(weight, 0)
    if not RENORMALISE:
        total = tl.sum(tl.exp(x - top), 0)
    tl.store(weights + token * ACTIVE + slot, weight / total, mask=slot < ACTIVE)


@triton.jit
def biases(bias, expert, column, there, INNER: tl.constexpr):
    """An expert's own, for these columns of its first product and of its second."""
    place = bias + expert * 2 * INNER + column
    first = tl.load(place, mask=there, other=0.0).to(tl.float32)
    return first, tl.load(place + INNER, mask=there, other=0.0).to(tl.float32)


@triton.jit
def shared_part(shared, gate, token, width, column, inside):
    """What the expert that all tokens have adds to these columns of a token."""
    some = tl.load(shared + token * width + column, mask=inside, other=0.0).to(tl.float32)
    return some * tl.sigmoid(tl.load(gate + token).to(tl.float32))


@triton.jit(do_not_specialize=["tokens"])
def _up(
    x,
    weight,
    scales,
    bias,
    added,
    weights,
    members,
    counts,
    out,
    tokens,
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
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    block, expert = tl.program_id(0), tl.program_id(1)
    count = tl.minimum(tl.load(counts + expert), tokens)
    column = block * BN + tl.arange(0, BN)
    own, deep = tl.arange(0, ROWS), tl.arange(0, BK)
    there = column < INNER
    lines = weight + expert.to(tl.int64) * 2 * INNER * HIDDEN + column[None, :] * HIDDEN
    for at in range(0, count, ROWS):
        real = at + own < count
        pair = tl.load(members + expert * tokens + at + own, mask=real, other=0)
        taken = x + (pair // ACTIVE).to(tl.int64)[:, None] * x_stride
        first = tl.zeros([ROWS, BN], tl.float32)
        second = tl.zeros([ROWS, BN], tl.float32)
        for start in range(0, HIDDEN, BK):
            part = start + deep
            some = tl.load(
                taken + part[None, :], mask=real[:, None] & (part < HIDDEN)[None, :], other=0.0
            )
            known = there[None, :] & (part < HIDDEN)[:, None]
            if PACKED:
                row = expert.to(tl.int64) * 2 * INNER + column[None, :]
                deep_part = part[:, None]
                one = packed_tile(weight, scales, row, deep_part, known, HIDDEN).to(some.dtype)
                two = packed_tile(weight, scales, row + INNER, deep_part, known, HIDDEN)
                two = two.to(some.dtype)
            else:
                one = tl.load(lines + part[:, None], mask=known, other=0.0)
                two = tl.load(lines + INNER * HIDDEN + part[:, None], mask=known, other=0.0)
            first = tl.dot(some, one, first, input_precision="ieee")
            second = tl.dot(some, two, second, input_precision="ieee")
        inside = real[:, None] & there[None, :]
        if BIASED:
            one_bias, two_bias = biases(bias, expert, column, there, INNER)
            first += one_bias[None, :]
            second += two_bias[None, :]
        cells = pair.to(tl.int64)[:, None] * INNER + column[None, :]
        if ADDED:
            extra = added + cells + pair.to(tl.int64)[:, None] * INNER
            first += tl.load(extra, mask=inside, other=0.0).to(tl.float32)
            second += tl.load(extra + INNER, mask=inside, other=0.0).to(tl.float32)
        found = joined(first, second, limit, CLAMPED, SLOPE)
        share = tl.load(weights + pair, mask=real, other=0.0)
        tl.store(out + cells, found * share[:, None], mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _down(
    inner,
    weight,
    scales,
    bias,
    weights,
    members,
    counts,
    out,
    tokens,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    BIASED: tl.constexpr,
    PACKED: tl.constexpr,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    block, expert = tl.program_id(0), tl.program_id(1)
    count = tl.minimum(tl.load(counts + expert), tokens)
    column = block * BN + tl.arange(0, BN)
    own, deep = tl.arange(0, ROWS), tl.arange(0, BK)
    there = column < HIDDEN
    lines = weight + expert.to(tl.int64) * INNER * HIDDEN + column[None, :] * INNER
    for at in range(0, count, ROWS):
        real = at + own < count
        pair = tl.load(members + expert * tokens + at + own, mask=real, other=0)
        rows = pair.to(tl.int64)[:, None]
        found = tl.zeros([ROWS, BN], tl.float32)
        for start in range(0, INNER, BK):
            part = start + deep
            some = tl.load(
                inner + rows * INNER + part[None, :],
                mask=real[:, None] & (part < INNER)[None, :],
                other=0.0,
            )
            known = there[None, :] & (part < INNER)[:, None]
            if PACKED:
                row = expert.to(tl.int64) * HIDDEN + column[None, :]
                one = packed_tile(weight, scales, row, part[:, None], known, INNER).to(some.dtype)
            else:
                one = tl.load(lines + part[:, None], mask=known, other=0.0)
            found = tl.dot(some, one, found, input_precision="ieee")
        if BIASED:
            share = tl.load(weights + pair, mask=real, other=0.0)
            extra = tl.load(bias + expert * HIDDEN + column, mask=there, other=0.0)
            found += share[:, None] * extra.to(tl.float32)[None, :]
        tl.store(out + rows * HIDDEN + column[None, :], found, mask=real[:, None] & there[None, :])


@triton.jit
def _join(
    onto,
    rows,
    shared,
    gate,
    out,
    width,
    onto_stride,
    ACTIVE: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.load(onto + token * onto_stride + column, mask=inside, other=0.0).to(tl.float32)
    for choice in tl.static_range(ACTIVE):
        row = token * ACTIVE + choice
        total += tl.load(rows + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if SHARED:
        total += shared_part(shared, gate, token, width, column, inside)
    tl.store(out + token * width + column, total, mask=inside)
