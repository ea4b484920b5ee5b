"""Triton kernels for each pair's own low-rank factor in a mixture of experts, over few tokens.

Beside `few_experts`. Where a row's adapter lies is read from the table of `adapter_table`; `owners`
int32 [N] is one more than the row's place in it, 0 for a row without an adapter. The factor that
all experts share is `row_adapters`' business.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels import dependent_launch
from tinkex.engine.kernels.mixtures.few_experts import FewRoutes
from tinkex.engine.kernels.row_adapters import EXPERT_FIELD, FIELDS

_BLOCK = 128


def expand(
    thin: Tensor, routes: FewRoutes, owners: Tensor, entry: int, table: Tensor, inner: int,
    rank: int,
) -> Tensor:  # fmt: skip
    """[pairs, 2 · inner]: of each pair, B of its expert times its token's thin row, gate and up
    side by side; zeros without an adapter. B [experts, inner, rank]."""
    active = routes.weights.shape[1]
    pairs, blocks = routes.weights.numel(), triton.cdiv(inner, _BLOCK)
    out = torch.empty(pairs, 2 * inner, dtype=thin.dtype, device=thin.device)
    _expand[pairs, 2 * blocks](
        thin, routes.experts, owners, table, out, entry, table.shape[1], thin.shape[1],
        BLOCKS=blocks, INNER=inner, ACTIVE=active, RANK=rank, BLOCK=_BLOCK, FIELDS=FIELDS,
        EXPERT_FIELD=EXPERT_FIELD, **dependent_launch.options(),
    )  # fmt: skip
    return out


def shrink(
    rows: Tensor, routes: FewRoutes, owners: Tensor, entry: int, table: Tensor, rank: int
) -> Tensor:
    """[N, rank]: A of each pair's expert times the pair's row [inner], summed by token. A
    [experts, rank, inner]."""
    active = routes.weights.shape[1]
    parts = torch.empty(len(rows), rank, dtype=rows.dtype, device=rows.device)
    _shrink[(len(rows),)](
        rows, routes.experts, owners, table, parts, entry, table.shape[1], INNER=rows.shape[1],
        ACTIVE=active, RANK=rank, BLOCK=_BLOCK, FIELDS=FIELDS, EXPERT_FIELD=EXPERT_FIELD,
        **dependent_launch.options(),
    )  # fmt: skip
    return parts.view(-1, active, rank).sum(1)


@triton.jit(do_not_specialize=["entry"])
def _expand(
    thin,
    experts,
    owners,
    table,
    out,
    entry,
    entries,
    thin_width,
    BLOCKS: tl.constexpr,
    INNER: tl.constexpr,
    ACTIVE: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    FIELDS: tl.constexpr,
    EXPERT_FIELD: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    pair, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = pair // ACTIVE
    module = block // BLOCKS
    column, ranks = (block % BLOCKS) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, RANK)
    there = column < INNER
    owner = tl.load(owners + token).to(tl.int64)
    found = tl.zeros([BLOCK], tl.float32)
    if owner > 0:
        info = table + ((owner - 1) * entries + entry) * FIELDS
        b = tl.load(info + EXPERT_FIELD + module).to(tl.pointer_type(thin.dtype.element_ty))
        offset = tl.load(info + 3 + 2 * module)
        rank = tl.load(info + 4 + 2 * module)
        expert = tl.load(experts + pair).to(tl.int64)
        some = tl.load(thin + token * thin_width + offset + ranks, mask=ranks < rank, other=0.0).to(
            tl.float32
        )
        factor = tl.load(
            b + (expert * INNER + column)[:, None] * rank + ranks[None, :],
            mask=there[:, None] & (ranks < rank)[None, :],
            other=0.0,
        )
        found = tl.sum(factor.to(tl.float32) * some[None, :], 1)
    tl.store(out + pair * 2 * INNER + module * INNER + column, found, mask=there)


@triton.jit(do_not_specialize=["entry"])
def _shrink(
    rows,
    experts,
    owners,
    table,
    parts,
    entry,
    entries,
    INNER: tl.constexpr,
    ACTIVE: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    FIELDS: tl.constexpr,
    EXPERT_FIELD: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    pair = tl.program_id(0).to(tl.int64)
    ranks, inner = tl.arange(0, RANK), tl.arange(0, BLOCK)
    owner = tl.load(owners + pair // ACTIVE).to(tl.int64)
    total = tl.zeros([RANK, BLOCK], tl.float32)
    if owner > 0:
        info = table + ((owner - 1) * entries + entry) * FIELDS
        a = tl.load(info + EXPERT_FIELD).to(tl.pointer_type(rows.dtype.element_ty))
        rank = tl.load(info + 4)
        expert = tl.load(experts + pair).to(tl.int64)
        for at in range(0, INNER, BLOCK):
            part = at + inner
            some = tl.load(rows + pair * INNER + part, mask=part < INNER, other=0.0)
            factor = tl.load(
                a + (expert * rank + ranks)[:, None] * INNER + part[None, :],
                mask=(ranks < rank)[:, None] & (part < INNER)[None, :],
                other=0.0,
            )
            total += factor.to(tl.float32) * some.to(tl.float32)[None, :]
    tl.store(parts + pair * RANK + ranks, tl.sum(total, 1))
