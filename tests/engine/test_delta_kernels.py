"""The kernels of linear attention, and of queries and keys, compute what the CPU's formulas say.

Against float64. On a machine without a GPU `test_interpreted.py` runs them.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.interpreted import DEVICE, here
from tinkex.engine.model.block_configs import AttentionConfig, GatedDeltaConfig
from tinkex.engine.model.blocks.attention import Attention
from tinkex.engine.model.linear.delta import (
    DeltaInputs,
    causal_conv,
    conv_states,
    delta_states,
    heads_of,
)
from tinkex.engine.model.linear.stretches import Stretches
from tinkex.engine.model.rope_config import RopeConfig

LENGTHS = [1, 63, 64, 129]
"""About the 64 tokens of a chunk: less than one, one, and one that is begun after two."""
NEAR = [1, 3, 4, 5, 33, 2]
"""About the four tokens that a convolution sees, and the 16 of which one program makes rows."""
CONFIG = GatedDeltaConfig(2, 4, 24, 40, 4, 1e-6)
PLACES = [5, 3, 1, 0, 7, 2]


@here
@pytest.mark.parametrize(
    ("alike", "decay", "lengths"),
    [(False, 0.3, LENGTHS), (True, 0.3, [65]), (False, 12.0, [65])],
)
def test_the_delta_rule_forwards_and_backwards(
    alike: bool, decay: float, lengths: list[int]
) -> None:
    """Also with keys that are nearly one and the same, where a careless solve would blow up, and
    where next to nothing is left after a token."""
    from tinkex.engine.kernels.linear.delta import Inputs
    from tinkex.engine.model.linear.device_delta import DeviceStretches, delta_rule

    given = delta_inputs(sum(lengths), alike, decay)
    leaves = [part.clone().requires_grad_() for part in given]
    found = delta_rule(Inputs(*leaves), DeviceStretches(lengths, DEVICE))
    exact = [part.double().requires_grad_() for part in given]
    wanted, _ = delta_states(DeltaInputs.by_value_head(*exact), Stretches(lengths, DEVICE), None)
    close(found, wanted)
    grad = random(*found.shape, seed=7)
    ours = torch.autograd.grad(found, leaves, grad)
    for one, other in zip(ours, torch.autograd.grad(wanted, exact, grad.double()), strict=True):
        close(one, other)


@here
def test_states_are_taken_up_and_left_where_they_lie() -> None:
    from tinkex.engine.kernels.linear.delta import Inputs
    from tinkex.engine.model.linear.device_delta import DeviceStretches, delta_rule

    own = PLACES[: len(LENGTHS)]
    given, store = delta_inputs(sum(LENGTHS)), random(8, 4, 24, 40, seed=8)
    before, places = store.clone(), torch.tensor(own, device=DEVICE)
    found = delta_rule(Inputs(*given), DeviceStretches(LENGTHS, DEVICE, own), store)
    exact = DeltaInputs.by_value_head(*(part.double() for part in given))
    wanted, after = delta_states(exact, Stretches(LENGTHS, DEVICE), before.double()[places])
    close(found, wanted)
    close(store[places], after)
    assert torch.equal(store[4], before[4])


@here
def test_a_token_moves_its_state_on() -> None:
    from tinkex.engine.kernels.linear import delta_step
    from tinkex.engine.kernels.linear.delta import Inputs

    given = delta_inputs(6)
    store = random(8, 4, 24, 40, seed=8)
    before, places = store.clone(), torch.tensor(PLACES, device=DEVICE)
    found = delta_step.step(Inputs(*given), store, places.int())
    exact = DeltaInputs.by_value_head(*(part.double() for part in given))
    with torch.no_grad():
        start = before.double()[places]
        wanted, after = delta_states(exact, Stretches([1] * 6, DEVICE), start)
    close(found, wanted)
    close(store[places], after)
    assert torch.equal(store[4], before[4])


@here
def test_the_convolution_forwards_and_backwards() -> None:
    from tinkex.engine.model.linear.device_delta import DeviceStretches, convolved

    x, weight = channels(sum(NEAR)), random(CONFIG.channels, 4, seed=2)
    leaf = x.detach().requires_grad_()
    found = torch.cat([part.flatten(1) for part in convolved(
        leaf, weight, CONFIG, DeviceStretches(NEAR, DEVICE))], 1)  # fmt: skip
    exact = x.double().requires_grad_()
    wanted = flat_heads(causal_conv(exact, weight.double(), Stretches(NEAR, DEVICE)))
    close(found, wanted)
    grad = random(*found.shape, seed=3)
    (ours,) = torch.autograd.grad(found, leaf, grad)
    close(ours, torch.autograd.grad(wanted, exact, grad.double())[0])


@here
@pytest.mark.parametrize("single", [False, True])
def test_the_convolution_goes_on_from_what_came_before(single: bool) -> None:
    from tinkex.engine.kernels.linear import short_conv
    from tinkex.engine.model.linear.device_delta import DeviceStretches, convolved, split_heads

    lengths = [1] * 6 if single else NEAR
    x, weight = channels(sum(lengths)), random(CONFIG.channels, 4, seed=2)
    store = random(8, 3, CONFIG.channels, seed=4)
    before, places = store.clone(), torch.tensor(PLACES, device=DEVICE)
    if single:
        heads = short_conv.Heads(CONFIG.key_heads, CONFIG.key_dim)
        parts = split_heads(short_conv.step(x, weight, heads, store, places.int()), CONFIG)
    else:
        parts = convolved(x, weight, CONFIG, DeviceStretches(lengths, DEVICE, PLACES), store)
    mixed, after = conv_states(
        x.double(), weight.double(), Stretches(lengths, DEVICE), before.double()[places]
    )
    close(torch.cat([part.flatten(1) for part in parts], 1), flat_heads(mixed))
    close(store[places], after)
    assert torch.equal(store[4], before[4])


@here
def test_the_gates_forwards_and_backwards() -> None:
    from tinkex.engine.kernels.linear import delta_gates

    ba, log, bias = random(33, 12, seed=1) * 8, random(6, seed=2), random(6, seed=3)
    exact = ba.double().requires_grad_()
    write, decay = exact.chunk(2, dim=1)
    wanted = (-log.double().exp() * F.softplus(decay + bias.double()), write.sigmoid())
    for one, other in zip(delta_gates.gates(ba, log, bias), wanted, strict=True):
        close(one, other)
    grads = random(33, 6, seed=4), random(33, 6, seed=5)
    (back,) = torch.autograd.grad(wanted, exact, [g.double() for g in grads])
    close(delta_gates.gates_backward(*grads, ba, log, bias), back)


@here
def test_the_gated_norm_forwards_and_backwards() -> None:
    from tinkex.engine.kernels.linear import delta_gates

    x, z, weight = random(11, 3, 40, seed=1), random(11, 129, seed=2)[:, 5:125], random(40, seed=3)
    exact, gate = x.double().requires_grad_(), z.double().requires_grad_()
    wanted = F.rms_norm(exact, (40,), weight.double(), 1e-6).flatten(1) * F.silu(gate)
    close(delta_gates.gated_norm(x, z, weight, 1e-6), wanted)
    grad = random(11, 120, seed=4)
    back = torch.autograd.grad(wanted, (exact, gate), grad.double())
    found = delta_gates.gated_norm_backward(grad, x, z, weight, 1e-6)
    for one, other in zip(found, back, strict=True):
        close(one, other)


@here
@pytest.mark.parametrize(
    ("gated", "normed", "rotated", "scale", "size"),
    [(False, True, 40, None, 40), (True, True, 16, None, 40), (False, False, 40, 0.3, 40),
     (False, False, None, None, 24), (True, False, 24, None, 24)],
)  # fmt: skip
def test_queries_and_keys_are_made_ready(
    gated: bool, normed: bool, rotated: int | None, scale: float | None, size: int
) -> None:
    from tinkex.engine.model.blocks import head_ops

    rope = None if rotated is None else RopeConfig(10_000.0, rotated)
    config = AttentionConfig(6, 2, size, 1e-6, rope, qk_norm=normed, gated=gated, scale=scale)
    norms = [random(size, seed=i) if normed else None for i in (1, 2)]
    x, nothing = random(9, sum(config.qkv_sizes), seed=3), torch.empty(0)
    angles = None
    if rotated is not None:
        phase = random(9, 1, rotated // 2, seed=4)
        angles = (phase.cos(), phase.sin())
    leaf, exact = x.clone().requires_grad_(), x.cpu().double().requires_grad_()
    found = head_ops.ready(leaf, norms[0], norms[1], angles, config)
    wide = [None if norm is None else norm.cpu().double() for norm in norms]
    block = Attention(config, nothing, nothing, q_norm=wide[0], k_norm=wide[1])
    turns = None if angles is None else (angles[0].cpu().double(), angles[1].cpu().double())
    wanted = block._heads(exact, turns)
    pairs = [(one, other) for one, other in zip(found, wanted, strict=True) if other is not None]
    assert len(pairs) == 3 + gated
    grads = [random(*other.shape, seed=5 + i) for i, (_, other) in enumerate(pairs)]
    for one, other in pairs:
        assert one is not None
        close(one, other)
    ours = torch.autograd.grad([one for one, _ in pairs if one is not None], leaf, grads)
    theirs = torch.autograd.grad([o for _, o in pairs], exact, [g.cpu().double() for g in grads])
    close(ours[0], theirs[0])


def delta_inputs(tokens: int, alike: bool = False, decay: float = 0.3) -> list[Tensor]:
    k = random(tokens, 2, 24, seed=2)
    if alike:
        k = k * 0.05 + 1.0
    return [
        random(tokens, 2, 24, seed=1),
        F.normalize(k, dim=-1),
        random(tokens, 4, 40, seed=3),
        -random(tokens, 4, seed=4).sigmoid() * decay,
        random(tokens, 4, seed=5).sigmoid(),
    ]


def channels(tokens: int) -> Tensor:
    """As they come from a fused product: rows are further apart than they are long."""
    return random(tokens, CONFIG.channels + 13, seed=1)[:, : CONFIG.channels]


def flat_heads(mixed: Tensor) -> Tensor:
    """`heads_of` in float64."""
    silu = F.silu(mixed)
    q, k, v = silu.split_with_sizes([CONFIG.key_size, CONFIG.key_size, CONFIG.value_size], dim=1)
    q, k = (x.reshape(len(x), CONFIG.key_heads, CONFIG.key_dim) for x in (q, k))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    found = torch.cat([(q * CONFIG.key_dim**-0.5).flatten(1), k.flatten(1), v], 1)
    theirs = heads_of(mixed.float(), CONFIG)
    close(torch.cat([part.flatten(1) for part in theirs], 1), found)
    return found


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(found: Tensor, wanted: Tensor) -> None:
    apart = (found.detach().cpu().double() - wanted.detach().cpu().double()).norm()
    assert apart <= 2e-5 * wanted.detach().cpu().double().norm() + 1e-6
