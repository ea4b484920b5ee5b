"""Triton kernels for the gated delta rule over packed sequences, in chunks, forwards.

The maths is that of `model.linear.delta`. Corrections inside a chunk are solved for all chunks at
once (`_solve`), the state runs from chunk to chunk (`_scan`), outputs are again made for all chunks
at once (`_outputs`). Sequences are read where they lie: `cut` int32 [chunks, 2] holds the first
token and the tokens of each chunk, those of a sequence in order, and `stretches` int32 [sequences,
3] the first chunk, chunks and place of each sequence's state.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64
_SCANNED = 32
"""Columns of a state that one program carries along a sequence."""


class Inputs(NamedTuple):
    """q and k [N, key heads, K], v [N, heads, V] of one dtype, dense along a token; decay (its
    logarithm) and write [N, heads] in float32."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    write: Tensor


class Corrected(NamedTuple):
    """Of each token and head the chunk's summed decay up to it, and its corrections: values
    [N, heads, V], and keys [N, heads, K] for what the state adds. `inverse` [chunks, heads, CHUNK,
    CHUNK] is the solved system."""

    total: Tensor
    values: Tensor
    keys: Tensor
    inverse: Tensor


class Scanned(NamedTuple):
    """What each token writes [N, heads, V], and the states before each chunk."""

    written: Tensor
    states: Tensor


def blocks(width: int) -> int:
    """Into blocks of how many columns a width is cut."""
    return int(min(64, max(16, triton.next_power_of_2(width))))


def shapes(x: Inputs) -> dict[str, int]:
    heads, key, value = x.v.shape[1], x.q.shape[2], x.v.shape[2]
    return {
        "HEADS": heads, "TIMES": heads // x.q.shape[1], "KEY": key, "VALUE": value, "CHUNK": CHUNK,
    }  # fmt: skip


def solve(x: Inputs, cut: Tensor, inverse: Tensor | None = None) -> Corrected:
    """`inverse` may be what a solve of the same inputs found."""
    tokens, heads, value = x.v.shape
    key = x.k.shape[2]
    found = Corrected(
        torch.empty(tokens, heads, dtype=torch.float32, device=x.v.device),
        x.v.new_empty(tokens, heads, value),
        x.v.new_empty(tokens, heads, key),
        x.v.new_empty(len(cut), heads, CHUNK, CHUNK) if inverse is None else inverse,
    )
    _solve[len(cut), heads](
        x.k, x.v, x.decay, x.write, cut, *found, x.k.stride(0), x.v.stride(0), **shapes(x),
        BK=blocks(key), BV=blocks(value), SOLVED=inverse is not None, num_warps=4,
    )  # fmt: skip
    return found


def scan(
    x: Inputs, solved: Corrected, cut: Tensor, stretches: Tensor, store: Tensor | None, keep: bool
) -> Scanned:
    """States start as zeros, or, with a `store` float32 [places, heads, K, V], as what lies at the
    sequences' places, where they are left too. Unless `keep` the states before chunks are not."""
    tokens, heads, value = x.v.shape
    key = x.k.shape[2]
    states = x.v.new_empty(len(cut) if keep else 0, heads, key, value)
    written = torch.empty(tokens, heads, value, dtype=x.v.dtype, device=x.v.device)
    block = min(_SCANNED, blocks(value))
    _scan[triton.cdiv(value, block), heads, len(stretches)](
        x.k, solved.values, solved.keys, solved.total, cut, stretches, written, states,
        store if store is not None else solved.total, x.k.stride(0), **shapes(x),
        PADDED=max(16, triton.next_power_of_2(key)), BV=block, STORED=store is not None, KEEP=keep,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return Scanned(written, states)


def outputs(x: Inputs, total: Tensor, scanned: Scanned, cut: Tensor) -> Tensor:
    tokens, heads, value = x.v.shape
    out = torch.empty(tokens, heads, value, dtype=x.v.dtype, device=x.v.device)
    block = blocks(value)
    _outputs[triton.cdiv(value, block), len(cut), heads](
        x.q, x.k, total, *scanned, cut, out, x.q.stride(0), **shapes(x), BK=blocks(x.k.shape[2]),
        BV=block, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def tokens_of(cut, chunk, head, HEADS: tl.constexpr, CHUNK: tl.constexpr):
    """How many tokens a chunk has, which of its lanes they are, their rows, and where what they
    have one of for each head lies."""
    first, count = tl.load(cut + chunk * 2), tl.load(cut + chunk * 2 + 1)
    own = tl.arange(0, CHUNK)
    rows = (first + own).to(tl.int64)
    return count, own < count, rows, rows * HEADS + head


@triton.jit
def last_total(total_in, cut, chunk, head, HEADS: tl.constexpr):
    """The summed decay of a whole chunk."""
    last = tl.load(cut + chunk * 2) + tl.load(cut + chunk * 2 + 1) - 1
    return tl.load(total_in + last.to(tl.int64) * HEADS + head)


@triton.jit
def fading(total, CHUNK: tl.constexpr):
    """[i, j]: what is left in token j of what token i, no later one, wrote. Rows after the chunk's
    end, whose sums are not known, must not grow beyond all bounds: what they meet is zero."""
    own = tl.arange(0, CHUNK)
    fade = tl.exp(tl.minimum(total[None, :] - total[:, None], 0.0))
    return tl.where(own[None, :] >= own[:, None], fade, 0.0)


@triton.jit
def _inverse(system, CHUNK: tl.constexpr):
    """Of one plus a strictly lower triangular [CHUNK, CHUNK]. First inside blocks on the diagonal,
    row by row and in all of them at once, then two neighbouring blocks become one."""
    own = tl.arange(0, CHUNK)
    blocks: tl.constexpr = CHUNK // 16
    near = (own[:, None] // 16) == (own[None, :] // 16)
    # Transposed, so that a row of the system is a column here and needs no other layout.
    turned = tl.reshape(tl.trans(tl.where(near, system, 0.0)), [CHUNK, blocks, 16])
    within = tl.arange(0, 16)[None, None, :]
    inverse = tl.where(own[:, None] == own[None, :], 1.0, 0.0)
    for row in range(1, 16):
        weights = tl.sum(tl.where(within == row, turned, 0.0), 2)
        weights = tl.broadcast_to(weights[:, :, None], [CHUNK, blocks, 16])
        solved = tl.sum(tl.reshape(weights, [CHUNK, CHUNK]) * inverse, 0)
        here = own[:, None] == (own[None, :] // 16) * 16 + row
        inverse = tl.where(here, inverse - solved[None, :], inverse)
    inverse = _joined(inverse, system, 16, CHUNK)
    return _joined(inverse, system, 32, CHUNK)


@triton.jit
def _joined(inverse, system, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """Inverses of blocks on the diagonal to those of blocks twice as large."""
    own = tl.arange(0, CHUNK)
    pair = (own[:, None] // (2 * SIZE)) == (own[None, :] // (2 * SIZE))
    apart = (own[:, None] // SIZE) != (own[None, :] // SIZE)
    inner = tl.dot(tl.where(pair & apart, system, 0.0), inverse, input_precision="tf32x3")
    return inverse - tl.dot(inverse, inner, input_precision="tf32x3")


@triton.jit
def _solve(
    k,
    v,
    decay,
    write,
    cut,
    total_out,
    values,
    keys,
    inverse_out,
    k_stride,
    v_stride,
    HEADS: tl.constexpr,
    TIMES: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    CHUNK: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    SOLVED: tl.constexpr,
):
    chunk, head = tl.program_id(0), tl.program_id(1)
    own = tl.arange(0, CHUNK)
    _, real, rows, gates = tokens_of(cut, chunk, head, HEADS, CHUNK)
    total = tl.cumsum(tl.load(decay + gates, mask=real, other=0.0), 0)
    strength = tl.load(write + gates, mask=real, other=0.0)
    tl.store(total_out + gates, total, mask=real)
    kind: tl.constexpr = v.dtype.element_ty
    keys_in = k + rows[:, None] * k_stride + (head // TIMES) * KEY
    square = (chunk * HEADS + head).to(tl.int64) * CHUNK * CHUNK
    square += own[:, None] * CHUNK + own[None, :]
    if SOLVED:
        inverse = tl.load(inverse_out + square)
    else:
        both = tl.zeros([CHUNK, CHUNK], tl.float32)
        for at in range(0, KEY, BK):
            part = at + tl.arange(0, BK)
            some = tl.load(
                keys_in + part[None, :], mask=real[:, None] & (part < KEY)[None, :], other=0.0
            )
            both = tl.dot(some, tl.trans(some), both, input_precision="ieee")
        below = own[:, None] > own[None, :]
        system = tl.where(below, both * strength[:, None] * tl.trans(fading(total, CHUNK)), 0.0)
        inverse = _inverse(system, CHUNK).to(kind)
        tl.store(inverse_out + square, inverse)
    for at in range(0, VALUE, BV):
        part = at + tl.arange(0, BV)
        inside = real[:, None] & (part < VALUE)[None, :]
        some = tl.load(
            v + rows[:, None] * v_stride + head * VALUE + part[None, :], mask=inside, other=0.0
        )
        found = tl.dot(inverse, (some * strength[:, None]).to(kind), input_precision="ieee")
        tl.store(values + gates[:, None] * VALUE + part[None, :], found, mask=inside)
    risen = strength * tl.exp(total)
    for at in range(0, KEY, BK):
        part = at + tl.arange(0, BK)
        inside = real[:, None] & (part < KEY)[None, :]
        some = tl.load(keys_in + part[None, :], mask=inside, other=0.0)
        found = tl.dot(inverse, (some * risen[:, None]).to(kind), input_precision="ieee")
        tl.store(keys + gates[:, None] * KEY + part[None, :], found, mask=inside)


@triton.jit
def _scan(
    k,
    values,
    keys,
    total_in,
    cut,
    stretches,
    written,
    states,
    store,
    k_stride,
    HEADS: tl.constexpr,
    TIMES: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    CHUNK: tl.constexpr,
    PADDED: tl.constexpr,
    BV: tl.constexpr,
    STORED: tl.constexpr,
    KEEP: tl.constexpr,
):
    block, head, stretch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, chunks = tl.load(stretches + stretch * 3), tl.load(stretches + stretch * 3 + 1)
    wide = tl.arange(0, PADDED)
    part = block * BV + tl.arange(0, BV)
    there = part < VALUE
    cells = wide[:, None] * VALUE + part[None, :]
    known = (wide < KEY)[:, None] & there[None, :]
    kind: tl.constexpr = values.dtype.element_ty
    state = tl.zeros([PADDED, BV], tl.float32)
    if STORED:
        place = tl.load(stretches + stretch * 3 + 2).to(tl.int64)
        store += (place * HEADS + head) * KEY * VALUE
        state = tl.load(store + cells, mask=known, other=0.0)
    for chunk in range(begin, begin + chunks):
        _, real, rows, gates = tokens_of(cut, chunk, head, HEADS, CHUNK)
        if KEEP:
            target = states + (chunk * HEADS + head).to(tl.int64) * KEY * VALUE
            tl.store(target + cells, state, mask=known)
        total = tl.load(total_in + gates, mask=real, other=0.0)
        end = last_total(total_in, cut, chunk, head, HEADS)
        inside = real[:, None] & there[None, :]
        across = real[:, None] & (wide < KEY)[None, :]
        some = tl.load(keys + gates[:, None] * KEY + wide[None, :], mask=across, other=0.0)
        new = tl.load(values + gates[:, None] * VALUE + part[None, :], mask=inside, other=0.0)
        new = new.to(tl.float32) - tl.dot(some, state.to(kind), input_precision="ieee")
        tl.store(written + gates[:, None] * VALUE + part[None, :], new, mask=inside)
        given = tl.load(
            k + rows[None, :] * k_stride + (head // TIMES) * KEY + wide[:, None],
            mask=real[None, :] & (wide < KEY)[:, None],
            other=0.0,
        )
        new *= tl.where(real, tl.exp(end - total), 0.0)[:, None]
        state = tl.dot(given, new.to(kind), state * tl.exp(end), input_precision="ieee")
    if STORED:
        tl.store(store + cells, state, mask=known)


@triton.jit
def _outputs(
    q,
    k,
    total_in,
    written,
    states,
    cut,
    out,
    q_stride,
    HEADS: tl.constexpr,
    TIMES: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    CHUNK: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    block, chunk, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    _, real, rows, gates = tokens_of(cut, chunk, head, HEADS, CHUNK)
    part = block * BV + tl.arange(0, BV)
    there = part < VALUE
    total = tl.load(total_in + gates, mask=real, other=0.0)
    states += (chunk * HEADS + head).to(tl.int64) * KEY * VALUE
    kind: tl.constexpr = written.dtype.element_ty
    lane = rows[:, None] * q_stride + (head // TIMES) * KEY
    found = tl.zeros([CHUNK, BV], tl.float32)
    both = tl.zeros([CHUNK, CHUNK], tl.float32)
    for at in range(0, KEY, BK):
        wide = at + tl.arange(0, BK)
        inside = real[:, None] & (wide < KEY)[None, :]
        query = tl.load(q + lane + wide[None, :], mask=inside, other=0.0)
        some = tl.load(k + lane + wide[None, :], mask=inside, other=0.0)
        state = tl.load(
            states + wide[:, None] * VALUE + part[None, :],
            mask=(wide < KEY)[:, None] & there[None, :],
            other=0.0,
        )
        found = tl.dot(query, state, found, input_precision="ieee")
        both = tl.dot(query, tl.trans(some), both, input_precision="ieee")
    both *= tl.trans(fading(total, CHUNK))
    inside = real[:, None] & there[None, :]
    new = tl.load(written + gates[:, None] * VALUE + part[None, :], mask=inside, other=0.0)
    found *= tl.exp(total)[:, None]
    found = tl.dot(both.to(kind), new, found, input_precision="ieee")
    tl.store(out + gates[:, None] * VALUE + part[None, :], found, mask=inside)
