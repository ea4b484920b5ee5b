"""Frozen products of training: the same numbers and gradients, whichever library makes them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tinkex.engine.cpu import batch_invariant
from tinkex.engine.cpu.threads import threads
from tinkex.engine.training.packing import SOLO_TOKENS


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 32), (48, 32), (512, 384)])
def test_products_and_their_gradients_are_those_of_float64(
    shape: tuple[int, int], count: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=draw) * 0.1
    bias = torch.randn(shape[0], generator=draw)
    x = torch.randn(20, shape[1], generator=draw).requires_grad_()
    exact = x.detach().double().requires_grad_()
    slope = torch.randn(20, shape[0], generator=draw)
    with threads(count):
        found = batch_invariant.linear(x, weight, bias)
        (gradient,) = torch.autograd.grad(found, x, slope)
        back = batch_invariant.times(slope, weight)
        without = batch_invariant.linear(x.detach(), weight, bias)
    expected = F.linear(exact, weight.double(), bias.double())
    (wanted,) = torch.autograd.grad(expected, exact, slope.double())
    for got, want in ((found, expected), (without, expected), (gradient, wanted), (back, wanted)):
        torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("outputs", [1, 48])
def test_a_rows_product_is_the_same_bits_among_any_number_of_rows(outputs: int) -> None:
    """Of one output too, as a shared expert's gate has: some libraries sum those by fours."""
    draw = torch.Generator().manual_seed(1)
    weight, x = torch.randn(outputs, 64, generator=draw), torch.randn(140, 64, generator=draw)
    with threads(1):
        whole = batch_invariant.linear(x, weight, None)
        for rows in range(SOLO_TOKENS, 64):
            part = batch_invariant.linear(x[5 : 5 + rows], weight, None)
            assert torch.equal(part, whole[5 : 5 + rows]), rows
