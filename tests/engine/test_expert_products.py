"""Products over tokens sorted by expert: torch's own loop over experts gives the bits of ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tinkex.engine.model import routes as module
from tinkex.engine.model.blocks.expert_ops import gated_rows
from tinkex.engine.model.routes import STEADY_ROWS, Routes, products, products_back

EXPERTS, HIDDEN, INNER = 5, 32, 24


def routed(tokens: int, few: int) -> Routes:
    """Two choices for each token: the third expert is chosen `few` times, the last never."""
    draw = torch.Generator().manual_seed(tokens)
    first = torch.randint(0, 2, (tokens,), generator=draw)
    second = torch.full((tokens,), 3)
    second[:few] = 2
    return Routes(torch.stack([first, second], 1), EXPERTS)


@pytest.mark.parametrize("few", [0, 1, STEADY_ROWS - 1, STEADY_ROWS])
@pytest.mark.parametrize("way", [products, products_back])
def test_one_call_for_all_experts_gives_the_bits_of_one_for_each(
    few: int, way: Callable[[Tensor, Tensor, Routes], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = routed(70, few)
    width = HIDDEN if way is products else INNER
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(140, width, generator=draw)
    weight = torch.randn(EXPERTS, INNER, HIDDEN, generator=draw)
    found = way(x, weight, routes)
    monkeypatch.setattr(module, "loops_without_python", lambda *_: False)
    assert torch.equal(found, way(x, weight, routes))
    assert routes.are_many == (few in (0, STEADY_ROWS))
    expected = torch.stack(
        [
            x[row] @ (weight[expert].T if way is products else weight[expert])
            for row, expert in enumerate(routes.row_experts.tolist())
        ]
    )
    torch.testing.assert_close(found, expected)


def test_a_rows_share_scales_it_and_gets_its_gradient() -> None:
    routes = routed(20, 3)
    draw = torch.Generator().manual_seed(2)
    gate_up = torch.randn(40, 2 * INNER, generator=draw).requires_grad_()
    share = torch.rand(40, generator=draw).requires_grad_()
    grad = torch.randn(40, INNER, generator=draw)
    gate, up = gate_up.chunk(2, dim=1)
    plain = torch.nn.functional.silu(gate) * up * share[:, None]
    own = gated_rows(gate_up, share, None, routes, None)
    torch.testing.assert_close(own, plain)
    found = torch.autograd.grad(own, (gate_up, share), grad)
    for one, other in zip(found, torch.autograd.grad(plain, (gate_up, share), grad), strict=True):
        torch.testing.assert_close(one, other)
