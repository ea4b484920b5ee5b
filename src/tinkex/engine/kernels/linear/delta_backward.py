"""Triton kernels for the gated delta rule, backwards. Names and layouts are those of `delta`.

In each chunk, with states S before and S' after it, summed decays G, their last E, and w, u the
solved keys and values:

    n = u − w S;   o = e^G q S + P n;   S' = e^E S + (e^(E−G) k)ᵀ n;   P = tril(q kᵀ e^(G−G))
    w = T X,  X = β e^G k;   u = T Y,  Y = β v;   T = (1 + A)⁻¹,  A = stril(β k kᵀ e^(G−G))
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels.linear.delta import (
    _SCANNED,
    Corrected,
    Inputs,
    Scanned,
    blocks,
    fading,
    last_total,
    shapes,
    tokens_of,
)


def gradients(
    x: Inputs, solved: Corrected, scanned: Scanned, cut: Tensor, stretches: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of q, k, v, decay and write, given the outputs' [N, heads, V]. Sequences start from zeros."""
    tokens, heads, value = x.v.shape
    key_heads, key = x.k.shape[1:]
    device, sizes, grad = x.v.device, shapes(x), grad.contiguous()
    bk, bv = blocks(key), blocks(value)
    dn, dn_local = torch.empty_like(scanned.written), torch.empty_like(scanned.written)
    _local[triton.cdiv(value, bv), len(cut), heads](
        x.q, x.k, solved.total, cut, grad, dn_local, x.q.stride(0), **sizes, BK=bk, BV=bv,
        num_warps=4,
    )  # fmt: skip
    d_states, strip = torch.empty_like(scanned.states), min(_SCANNED, bv)
    _scan_back[triton.cdiv(value, strip), heads, len(stretches)](
        x.q, x.k, solved.keys, solved.total, cut, stretches, grad, dn_local, dn, d_states,
        x.q.stride(0), **sizes, PADDED=max(16, triton.next_power_of_2(key)), BV=strip, num_warps=4,
        num_stages=2,
    )  # fmt: skip
    strips = triton.cdiv(key, bk)
    dq, dk, dw = (torch.empty(tokens, heads, key, dtype=x.v.dtype, device=device) for _ in "qkw")
    d_total = torch.empty(strips, tokens, heads, dtype=torch.float32, device=device)
    _through[strips, len(cut), heads](
        x.q, x.k, solved.total, *scanned, cut, grad, dn, d_states, dq, dk, dw, d_total,
        x.q.stride(0), tokens, **sizes, BK=bk, BV=bv, num_warps=4,
    )  # fmt: skip
    dv = torch.empty(tokens, heads, value, dtype=x.v.dtype, device=device)
    d_decay, d_write = torch.empty_like(x.decay), torch.empty_like(x.write)
    _solve_back[len(cut), heads](
        x.k, x.v, x.write, solved.total, solved.inverse, cut, dw, dn, d_total.sum(0), dk, dv,
        d_decay, d_write, x.k.stride(0), x.v.stride(0), **sizes, BK=bk, BV=bv, num_warps=8,
    )  # fmt: skip
    times = heads // key_heads
    if times > 1:
        dq, dk = (g.view(tokens, key_heads, times, key).sum(2) for g in (dq, dk))
    return dq, dk, dv, d_decay, d_write


@triton.jit
def _local(
    q,
    k,
    total_in,
    cut,
    grad,
    dn,
    q_stride,
    HEADS: tl.constexpr,
    TIMES: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    CHUNK: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    """dn = Pᵀ do."""
    block, chunk, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    _, real, rows, gates = tokens_of(cut, chunk, head, HEADS, CHUNK)
    total = tl.load(total_in + gates, mask=real, other=0.0)
    lane = rows[:, None] * q_stride + (head // TIMES) * KEY
    both = tl.zeros([CHUNK, CHUNK], tl.float32)
    for at in range(0, KEY, BK):
        wide = at + tl.arange(0, BK)
        inside = real[:, None] & (wide < KEY)[None, :]
        query = tl.load(q + lane + wide[None, :], mask=inside, other=0.0)
        some = tl.load(k + lane + wide[None, :], mask=inside, other=0.0)
        both = tl.dot(some, tl.trans(query), both, input_precision="ieee")
    both *= fading(total, CHUNK)
    part = block * BV + tl.arange(0, BV)
    cells = gates[:, None] * VALUE + part[None, :]
    inside = real[:, None] & (part < VALUE)[None, :]
    do = tl.load(grad + cells, mask=inside, other=0.0)
    tl.store(dn + cells, tl.dot(both.to(do.dtype), do, input_precision="ieee"), mask=inside)


@triton.jit
def _scan_back(
    q,
    k,
    keys,
    total_in,
    cut,
    stretches,
    grad,
    dn_local,
    dn,
    d_states,
    q_stride,
    HEADS: tl.constexpr,
    TIMES: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    CHUNK: tl.constexpr,
    PADDED: tl.constexpr,
    BV: tl.constexpr,
):
    """dn += e^(E−G) k dS';   dS = e^E dS' + (e^G q)ᵀ do − wᵀ dn. Keeps each chunk's dS'."""
    block, head, stretch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, chunks = tl.load(stretches + stretch * 3), tl.load(stretches + stretch * 3 + 1)
    wide = tl.arange(0, PADDED)
    part = block * BV + tl.arange(0, BV)
    there = part < VALUE
    kind: tl.constexpr = dn.dtype.element_ty
    state = tl.zeros([PADDED, BV], tl.float32)
    for back in range(chunks):
        chunk = begin + chunks - 1 - back
        _, real, rows, gates = tokens_of(cut, chunk, head, HEADS, CHUNK)
        target = d_states + (chunk * HEADS + head).to(tl.int64) * KEY * VALUE
        tl.store(
            target + wide[:, None] * VALUE + part[None, :],
            state,
            mask=(wide < KEY)[:, None] & there[None, :],
        )
        total = tl.load(total_in + gates, mask=real, other=0.0)
        end = last_total(total_in, cut, chunk, head, HEADS)
        inside = real[:, None] & there[None, :]
        cells = gates[:, None] * VALUE + part[None, :]
        lane = (head // TIMES) * KEY
        across = real[:, None] & (wide < KEY)[None, :]
        some = tl.load(k + rows[:, None] * q_stride + lane + wide[None, :], mask=across, other=0.0)
        new = tl.dot(some, state.to(kind), input_precision="ieee")
        new *= tl.where(real, tl.exp(end - total), 0.0)[:, None]
        new += tl.load(dn_local + cells, mask=inside, other=0.0)
        tl.store(dn + cells, new, mask=inside)
        do = tl.load(grad + cells, mask=inside, other=0.0) * tl.exp(total)[:, None]
        upright = real[None, :] & (wide < KEY)[:, None]
        query = tl.load(
            q + rows[None, :] * q_stride + lane + wide[:, None], mask=upright, other=0.0
        )
        solved = tl.load(keys + gates[None, :] * KEY + wide[:, None], mask=upright, other=0.0)
        state = tl.dot(query, do.to(kind), state * tl.exp(end), input_precision="ieee")
        state -= tl.dot(solved, new.to(kind), input_precision="ieee")


@triton.jit(do_not_specialize=["tokens"])
def _through(
    q,
    k,
    total_in,
    written,
    states,
    cut,
    grad,
    dn,
    d_states,
    dq_out,
    dk_out,
    dw_out,
    d_total,
    q_stride,
    tokens,
    HEADS: tl.constexpr,
    TIMES: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    CHUNK: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    """For a strip of the key's width: dq, dk as far as it is not in w, dw, and a share of dG."""
    strip, chunk, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    own = tl.arange(0, CHUNK)
    count, real, rows, gates = tokens_of(cut, chunk, head, HEADS, CHUNK)
    total = tl.load(total_in + gates, mask=real, other=0.0)
    end = last_total(total_in, cut, chunk, head, HEADS)
    wide = strip * BK + tl.arange(0, BK)
    corner = (chunk * HEADS + head).to(tl.int64) * KEY * VALUE
    kind: tl.constexpr = written.dtype.element_ty
    dq = tl.zeros([CHUNK, BK], tl.float32)
    dk = tl.zeros([CHUNK, BK], tl.float32)
    dw = tl.zeros([CHUNK, BK], tl.float32)
    both = tl.zeros([CHUNK, CHUNK], tl.float32)
    d_end = 0.0
    for at in range(0, VALUE, BV):
        part = at + tl.arange(0, BV)
        inside = real[:, None] & (part < VALUE)[None, :]
        cells = gates[:, None] * VALUE + part[None, :]
        do = tl.load(grad + cells, mask=inside, other=0.0)
        new = tl.load(written + cells, mask=inside, other=0.0)
        d_new = tl.load(dn + cells, mask=inside, other=0.0)
        square = corner + wide[None, :] * VALUE + part[:, None]
        known = (wide < KEY)[None, :] & (part < VALUE)[:, None]
        state = tl.load(states + square, mask=known, other=0.0)
        d_state = tl.load(d_states + square, mask=known, other=0.0)
        d_end += tl.sum(state.to(tl.float32) * d_state.to(tl.float32))
        both = tl.dot(do, tl.trans(new), both, input_precision="ieee")
        dq = tl.dot(do, state, dq, input_precision="ieee")
        dk = tl.dot(new, d_state, dk, input_precision="ieee")
        dw = tl.dot(d_new, state, dw, input_precision="ieee")
    both *= tl.trans(fading(total, CHUNK))
    inside = real[:, None] & (wide < KEY)[None, :]
    lane = rows[:, None] * q_stride + (head // TIMES) * KEY + wide[None, :]
    query = tl.load(q + lane, mask=inside, other=0.0)
    some = tl.load(k + lane, mask=inside, other=0.0)
    dk *= tl.where(real, tl.exp(end - total), 0.0)[:, None]
    given = tl.sum(dk * some, 1)
    dq = tl.dot(both.to(kind), some, dq * tl.exp(total)[:, None], input_precision="ieee")
    dk = tl.dot(tl.trans(both).to(kind), query, dk, input_precision="ieee")
    shift = tl.sum(dq * query, 1) - tl.sum(dk * some, 1)
    last = d_end * tl.exp(end) + tl.sum(given, 0)
    shift += tl.where(own == count - 1, last, 0.0)
    tl.store(d_total + strip.to(tl.int64) * tokens * HEADS + gates, shift, mask=real)
    cells = gates[:, None] * KEY + wide[None, :]
    tl.store(dq_out + cells, dq, mask=inside)
    tl.store(dk_out + cells, dk, mask=inside)
    tl.store(dw_out + cells, -dw, mask=inside)


@triton.jit
def _solve_back(
    k,
    v,
    write,
    total_in,
    inverse_in,
    cut,
    dw_in,
    du_in,
    d_total,
    dk_out,
    dv_out,
    d_decay,
    d_write,
    k_stride,
    v_stride,
    HEADS: tl.constexpr,
    TIMES: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    CHUNK: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    """dX = Tᵀ dw, dY = Tᵀ du, dA = −Tᵀ (dw Xᵀ + du Yᵀ) Tᵀ, and what follows for k, v, β and g."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    own = tl.arange(0, CHUNK)
    _, real, rows, gates = tokens_of(cut, chunk, head, HEADS, CHUNK)
    total = tl.load(total_in + gates, mask=real, other=0.0)
    strength = tl.load(write + gates, mask=real, other=0.0)
    shift = tl.load(d_total + gates, mask=real, other=0.0)
    kind: tl.constexpr = v.dtype.element_ty
    place = inverse_in + (chunk * HEADS + head).to(tl.int64) * CHUNK * CHUNK
    turned = tl.load(place + own[None, :] * CHUNK + own[:, None])
    rise = tl.exp(total)
    d_strength = tl.zeros([CHUNK], tl.float32)
    d_inverse = tl.zeros([CHUNK, CHUNK], tl.float32)
    both = tl.zeros([CHUNK, CHUNK], tl.float32)
    for at in range(0, VALUE, BV):
        part = at + tl.arange(0, BV)
        inside = real[:, None] & (part < VALUE)[None, :]
        some = tl.load(
            v + rows[:, None] * v_stride + head * VALUE + part[None, :], mask=inside, other=0.0
        )
        du = tl.load(du_in + gates[:, None] * VALUE + part[None, :], mask=inside, other=0.0)
        weighted = (some * strength[:, None]).to(kind)
        d_inverse = tl.dot(du, tl.trans(weighted), d_inverse, input_precision="ieee")
        back = tl.dot(turned, du, input_precision="ieee")
        d_strength += tl.sum(back * some, 1)
        target = dv_out + gates[:, None] * VALUE + part[None, :]
        tl.store(target, back * strength[:, None], mask=inside)
    keys_in = k + rows[:, None] * k_stride + (head // TIMES) * KEY
    for at in range(0, KEY, BK):
        part = at + tl.arange(0, BK)
        inside = real[:, None] & (part < KEY)[None, :]
        some = tl.load(keys_in + part[None, :], mask=inside, other=0.0)
        dw = tl.load(dw_in + gates[:, None] * KEY + part[None, :], mask=inside, other=0.0)
        weighted = (some * (strength * rise)[:, None]).to(kind)
        d_inverse = tl.dot(dw, tl.trans(weighted), d_inverse, input_precision="ieee")
        both = tl.dot(some, tl.trans(some), both, input_precision="ieee")
        back = tl.dot(turned, dw, input_precision="ieee")
        along = tl.sum(back * some, 1) * rise
        d_strength += along
        shift += along * strength
    inner = tl.dot(d_inverse.to(kind), turned, input_precision="ieee")
    d_system = -tl.dot(turned, inner.to(kind), input_precision="ieee")
    below = own[:, None] > own[None, :]
    d_system = tl.where(below, d_system * tl.trans(fading(total, CHUNK)), 0.0)
    pull = d_system * both
    d_strength += tl.sum(pull, 1)
    pull *= strength[:, None]
    shift += tl.sum(pull, 1) - tl.sum(pull, 0)
    d_system *= strength[:, None]
    symmetric = (d_system + tl.trans(d_system)).to(kind)
    for at in range(0, KEY, BK):
        part = at + tl.arange(0, BK)
        inside = real[:, None] & (part < KEY)[None, :]
        cells = gates[:, None] * KEY + part[None, :]
        some = tl.load(keys_in + part[None, :], mask=inside, other=0.0)
        dw = tl.load(dw_in + cells, mask=inside, other=0.0)
        dk = tl.load(dk_out + cells, mask=inside, other=0.0).to(tl.float32)
        dk += tl.dot(turned, dw, input_precision="ieee") * (strength * rise)[:, None]
        dk = tl.dot(symmetric, some, dk, input_precision="ieee")
        tl.store(dk_out + cells, dk, mask=inside)
    shift = tl.where(real, shift, 0.0)
    d_gate = tl.sum(shift, 0) - tl.cumsum(shift, 0) + shift
    tl.store(d_decay + gates, d_gate, mask=real)
    tl.store(d_write + gates, d_strength, mask=real)
