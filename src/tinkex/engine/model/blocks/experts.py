"""A mixture of experts: each token goes to a few of many small MLPs, chosen by a router.

The router is computed in float32. Experts are grouped products over tokens sorted by expert. The
weight of a choice scales the expert's inner activations, so that what comes back to a token is a
plain sum. No state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.model import steady
from tinkex.engine.model.block_configs import DOWN, UP, ExpertsConfig
from tinkex.engine.model.blocks.block import NamedProduct
from tinkex.engine.model.ops import swiglu
from tinkex.engine.model.passes import Pass
from tinkex.engine.model.routes import Routes


@dataclass(frozen=True, slots=True)
class Experts:
    """`router` [experts, hidden] in float32, `gate_up` [experts, 2 · inner, hidden], gate first,
    `down` [experts, hidden, inner]."""

    config: ExpertsConfig
    router: Tensor
    gate_up: Tensor
    down: Tensor

    def products(self) -> Iterator[NamedProduct]:
        for slot, stack in ((UP, self.gate_up), (DOWN, self.down)):
            for expert, weight in enumerate(stack):
                yield expert_product(slot, expert), weight, None

    def forward(self, layer: int, x: Tensor, onto: Tensor, run: Pass) -> Tensor:
        weights, routes = self._route(x)
        run.routed(layer, routes)
        inner = swiglu(run.expand(layer, UP, x, self.gate_up, routes))
        share = weights.flatten().index_select(0, routes.order)
        inner = inner * share[:, None].to(inner.dtype)
        return onto + run.contract(layer, DOWN, inner, self.down, routes)

    def _route(self, x: Tensor) -> tuple[Tensor, Routes]:
        scores = steady.linear(x.float(), self.router, None).softmax(-1)
        weights, chosen = torch.topk(scores, self.config.active, dim=-1)
        if self.config.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, Routes(chosen, self.config.experts)


def expert_product(slot: str, expert: int) -> str:
    """The name of one expert's product among a layer's."""
    return f"{slot}.{expert}"
