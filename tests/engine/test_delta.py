"""The chunked gated delta rule is the recurrence it stands for, at every length, from any state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tinkex.engine.model.linear.delta import (
    DeltaInputs,
    causal_conv,
    conv_states,
    delta_rule,
    delta_states,
)
from tinkex.engine.model.linear.stretches import Stretches

CPU = torch.device("cpu")
LENGTHS = (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 131)


def inputs(tokens: int, heads: int = 3, seed: int = 0) -> DeltaInputs:
    draw = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(tokens, heads, 8, generator=draw) for _ in range(2))
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    v = torch.randn(tokens, heads, 5, generator=draw)
    decay = -torch.rand(tokens, heads, generator=draw)
    return DeltaInputs(q, k, v, decay, torch.rand(tokens, heads, generator=draw))


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Token by token."""
    out = []
    for t in range(len(q)):
        state = state * decay[t].exp()[:, None, None]
        missing = write[t][:, None] * (v[t] - torch.einsum("hk,hkv->hv", k[t], state))
        state = state + k[t][..., None] * missing[:, None]
        out.append(torch.einsum("hk,hkv->hv", q[t], state))
    return torch.stack(out), state


def test_every_length_in_one_pack_with_states_in_and_out() -> None:
    given = inputs(sum(LENGTHS))
    initial = torch.randn(len(LENGTHS), 3, 8, 5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out, final = delta_states(given, Stretches(LENGTHS, CPU), initial)
    start = 0
    for index, length in enumerate(LENGTHS):
        part = [x[start : start + length].double() for x in given]
        wanted, end = recurrence(*part, initial[index].double())
        torch.testing.assert_close(
            out[start : start + length].double(), wanted, atol=1e-5, rtol=1e-4
        )
        torch.testing.assert_close(final[index].double(), end, atol=1e-5, rtol=1e-4)
        start += length


def test_gradients_are_those_of_the_recurrence() -> None:
    lengths = (3, 65, 17)
    given = inputs(sum(lengths), seed=2)
    for x in given:
        x.requires_grad_()
    slope = torch.randn(sum(lengths), 3, 5, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad(delta_rule(given, Stretches(lengths, CPU)), given, slope)
    exact = [x.detach().double().requires_grad_() for x in given]
    start, parts = 0, []
    for length in lengths:
        part = [x[start : start + length] for x in exact]
        parts.append(recurrence(*part, torch.zeros(3, 8, 5, dtype=torch.float64))[0])
        start += length
    wanted = torch.autograd.grad(torch.cat(parts), exact, slope.double())
    for own, theirs in zip(found, wanted, strict=True):
        assert (own.double() - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 30])
def test_a_convolution_goes_on_where_the_stretch_before_it_ended(cut: int) -> None:
    draw = torch.Generator().manual_seed(4)
    x, weight = torch.randn(33, 6, generator=draw), torch.randn(6, 4, generator=draw)
    whole = causal_conv(x, weight, Stretches([33], CPU))
    nothing = torch.zeros(1, 3, 6)
    first, window = conv_states(x[:cut], weight, Stretches([cut], CPU), nothing)
    second, _ = conv_states(x[cut:], weight, Stretches([33 - cut], CPU), window)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    padded = torch.nn.functional.conv1d(
        torch.nn.functional.pad(x.T[None], (3, 0)), weight[:, None], groups=6
    )
    torch.testing.assert_close(whole, padded[0].T)


@pytest.mark.parametrize("lengths", [(1, 1, 1), (1, 5, 2), (3, 1, 9)])
def test_stretches_of_a_step_each_go_on_from_their_own_past(lengths: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(5)
    x, weight = torch.randn(sum(lengths), 6, generator=draw), torch.randn(6, 4, generator=draw)
    before = torch.randn(3, 3, 6, generator=draw)
    found, after = conv_states(x, weight, Stretches(lengths, CPU), before)
    for index, own in enumerate(x.split_with_sizes(list(lengths))):
        longer = torch.cat([before[index], own])
        whole = causal_conv(longer, weight, Stretches([len(longer)], CPU))[3:]
        torch.testing.assert_close(found.split_with_sizes(list(lengths))[index], whole)
        assert torch.equal(after[index], longer[-3:])
