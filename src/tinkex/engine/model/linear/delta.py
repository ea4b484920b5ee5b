"""The gated delta rule over packed sequences, in chunks, and the causal convolution before it.

A state S [key size, value size] of each head decays and is corrected token by token:

    S ← exp(g) S;   S ← S + k (β (v − kᵀ S))ᵀ;   o = qᵀ S

Inside a chunk the corrections are a triangular system, solved at once; only the state travels from
chunk to chunk. All in float32. States and what came before start as zeros, or as given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.model.block_configs import GatedDeltaConfig
from tinkex.engine.model.linear.stretches import ChunkedStretches, Stretches
from tinkex.engine.model.ops import row_wise


def causal_conv(x: Tensor, weight: Tensor, stretches: Stretches) -> Tensor:
    """Each channel of [N, channels] with the `width` tokens of its stretch up to itself: weight
    [channels, width]."""
    out = x * weight[:, -1]
    for lag in range(1, weight.shape[1]):
        past = F.pad(x[:-lag], (0, 0, lag, 0))[: len(x)]
        before = (stretches.offsets < lag)[:, None]  # another's, perhaps NaN, which no zero undoes
        out = out + past.masked_fill(before, 0) * weight[:, -1 - lag]
    return out


def conv_states(
    x: Tensor, weight: Tensor, stretches: Stretches, before: Tensor
) -> tuple[Tensor, Tensor]:
    """The same after the tokens `before` each stretch [stretches, width - 1, channels], with those
    before the next. Without gradients."""
    reach = weight.shape[1] - 1
    if stretches.single:
        window = torch.cat([before, x[:, None]], dim=1)
        return (window * weight.T).sum(1), window[:, 1:]
    out = causal_conv(x, weight, stretches)
    for place in range(reach):
        # The oldest that this place still sees comes first.
        found = (before[:, place:] * weight.T[None, : reach - place]).sum(1)
        long = stretches.longer_than(place)
        out.index_add_(0, stretches.first.index_select(0, long) + place, found[long])
    return out, torch.stack([_last(x, stretches, before, index) for index in range(len(before))])


def _last(x: Tensor, stretches: Stretches, before: Tensor, index: int) -> Tensor:
    """The last tokens of a stretch, what came before included."""
    start, stop = stretches.starts[index : index + 2].tolist()
    own = x[max(start, stop - before.shape[1]) : stop]
    return torch.cat([before[index, len(own) :], own])


_NORM_EPS = 1e-6
"""Of the lengths of queries and keys."""


def heads_of(channels: Tensor, config: GatedDeltaConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by head from what was convolved, in float32: through a SiLU, queries
    and keys then of length one, queries scaled."""
    sizes = [config.key_size, config.key_size, config.value_size]
    q, k, v = row_wise(F.silu, channels).float().split_with_sizes(sizes, dim=1)
    q, k = (x.reshape(len(x), config.key_heads, config.key_dim) for x in (q, k))
    v = v.reshape(len(v), config.value_heads, config.value_dim)
    return _unit(q) * config.key_dim**-0.5, _unit(k), v


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _NORM_EPS)


class DeltaInputs(NamedTuple):
    """q and k [N, heads, key size], v [N, heads, value size], decay (g) and write (β) [N, heads],
    all float32."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    write: Tensor

    @classmethod
    def by_value_head(
        cls, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor
    ) -> DeltaInputs:
        """Each key head repeated for the value heads that it serves."""
        times = v.shape[1] // q.shape[1]
        if times > 1:
            q, k = (x.repeat_interleave(times, dim=1) for x in (q, k))
        return cls(q, k, v, decay, write)


def delta_rule(inputs: DeltaInputs, stretches: Stretches) -> Tensor:
    """o [N, heads, value size]; every stretch starts from zero.

    Keeps its inputs alone for the backward pass, and computes forward again there.
    """
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        result: Tensor = _Delta.apply(stretches, *inputs)  # type: ignore[no-untyped-call]  # torch's `apply` is untyped
        return result
    return delta_states(inputs, stretches, None)[0]


class _Delta(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stretches: Stretches, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        ctx.stretches = stretches
        return delta_states(DeltaInputs(*inputs), stretches, None)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = DeltaInputs(*(x.detach().requires_grad_() for x in ctx.saved_tensors))
        with torch.enable_grad():
            out, _ = delta_states(inputs, ctx.stretches, None)
        return (None, *torch.autograd.grad(out, inputs, grads[0]))


def delta_states(
    inputs: DeltaInputs, stretches: Stretches, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same from initial states [stretches, heads, key size, value size], with the states at
    each stretch's end."""
    if stretches.single and not torch.is_grad_enabled():
        return _step(inputs, initial)
    q, v = inputs.q, inputs.v
    out = torch.zeros_like(v)
    final = v.new_zeros(len(stretches.lengths), *q.shape[1:], v.shape[-1])
    for part in stretches.chunked:
        chunked = DeltaInputs(*(_to_chunks(x, part) for x in inputs))
        start = None if initial is None else initial.index_select(0, part.members)
        found, ends = _chunks(chunked, part, start)
        rows = found.transpose(1, 2).flatten(0, 1).index_select(0, part.places)
        out = out.index_copy(0, part.tokens, rows)
        final = final.index_copy(0, part.members, ends)
    return out, final


def _step(inputs: DeltaInputs, initial: Tensor | None) -> tuple[Tensor, Tensor]:
    """One token of each stretch: the recurrence as it stands."""
    q, k, v, decay, write = inputs
    state = v.new_zeros(*q.shape, v.shape[-1]) if initial is None else initial
    state = state * decay.exp()[..., None, None]
    missing = (v - torch.einsum("nhk,nhkv->nhv", k, state)) * write[..., None]
    state = state + k[..., None] * missing[..., None, :]
    out = torch.einsum("nhk,nhkv->nhv", q, state)
    return out, state


def _to_chunks(x: Tensor, part: ChunkedStretches) -> Tensor:
    """[N, heads, …] to [chunks, heads, chunk, …], zeros after a stretch's end."""
    rows = x.new_zeros(part.bounds[-1] * part.chunk, *x.shape[1:])
    rows = rows.index_copy(0, part.places, x.index_select(0, part.tokens))
    return rows.view(part.bounds[-1], part.chunk, *x.shape[1:]).transpose(1, 2)


def _chunks(
    inputs: DeltaInputs, part: ChunkedStretches, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Outputs [chunks, heads, chunk, value size] and the members' last states."""
    q, k, v, decay, write = inputs
    total = decay.cumsum(-1)
    fade = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    weighted = k * write[..., None]
    lower = (weighted @ k.mT * fade).tril(-1)
    rise = total.exp()[..., None]
    both = torch.cat([v * write[..., None], weighted * rise], dim=-1)
    solved = torch.linalg.solve_triangular(lower, both, upper=False, unitriangular=True)
    values, keys = solved.split_with_sizes([v.shape[-1], k.shape[-1]], dim=-1)
    seen, asked = (q @ k.mT) * fade, q * rise
    end = total[..., -1:]
    given = k * (end - total).exp()[..., None]
    if state is None:
        state = v.new_zeros(part.bounds[1], *k.shape[1:2], k.shape[-1], v.shape[-1])
    out, ended = [], []
    for start, stop in zip(part.bounds, part.bounds[1:], strict=False):
        ended.append(state[stop - start :])
        state = state[: stop - start]
        here = slice(start, stop)
        new = values[here] - keys[here] @ state
        out.append(asked[here] @ state + seen[here] @ new)
        state = state * end[here, ..., None].exp() + given[here].mT @ new
    # Those that ended last are the longest, which come first.
    return torch.cat(out), torch.cat([state, *reversed(ended)])
