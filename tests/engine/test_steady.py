"""Frozen products of training: the same numbers and gradients, whichever library makes them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tinkex.engine.cpu import batch_invariant
from tinkex.engine.cpu.threads import threads


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("shape", [(48, 32), (512, 384)])
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
