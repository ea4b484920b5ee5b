"""A mixture of experts: each token goes to a few of many small MLPs, chosen by a router.

The router is computed in float32. Experts are grouped products over tokens sorted by expert. The
weight of a choice scales the expert's inner activations, so that what comes back to a token is a
plain sum. Where ranks share a model, one has a part of every expert, or some of them whole: either
way what the ranks find sums to what one device would. No state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.cpu import batch_invariant
from tinkex.engine.model.block_configs import DOWN, SHARED_GATE, UP, ExpertsConfig
from tinkex.engine.model.blocks.block import NamedProduct
from tinkex.engine.model.blocks.dense_mlp import DenseMlp
from tinkex.engine.model.blocks.expert_ops import gated_rows
from tinkex.engine.model.matrices.frozen import Matrix
from tinkex.engine.model.matrices.packed_experts import ExpertStack
from tinkex.engine.model.ops import row_wise
from tinkex.engine.model.passes import KeptRoutes, Pass
from tinkex.engine.model.routes import Routes


@dataclass(frozen=True, slots=True)
class Experts:
    """`router` [routed, hidden] and its bias in float32, `gate_up` [experts, 2 · inner, hidden],
    gate first, `down` [experts, hidden, inner]; biases [experts, width]."""

    config: ExpertsConfig  # how many there are and how they are chosen
    router: Tensor  # a logit for each expert
    gate_up: ExpertStack  # the first product of each
    down: ExpertStack  # the second
    router_bias: Tensor | None = None  # where the family has one
    gate_up_bias: Tensor | None = None  # where the family has one
    down_bias: Tensor | None = None  # where the family has one
    shared: DenseMlp | None = None  # the MLP that every token passes, if there is one
    shared_gate: Matrix | None = None  # how much of it counts

    def products(self) -> Iterator[NamedProduct]:
        for slot, stack in ((UP, self.gate_up), (DOWN, self.down)):
            if not isinstance(stack, Tensor):
                continue  # those that stay packed are no matrices yet
            for expert, weight in enumerate(stack):
                yield expert_product(slot, expert), weight, None
        if self.shared is not None and self.shared_gate is not None:
            yield from self.shared.products()
            yield SHARED_GATE, self.shared_gate, None

    def forward(self, layer: int, x: Tensor, onto: Tensor, run: Pass) -> Tensor:
        if self.config.choices is None and run.takes_few(x):
            return self._forward_few(layer, x, onto, run)
        weights, chosen = self._route(x, run.kept_routes(layer))
        run.routed(layer, chosen)
        routes = self._own(chosen)
        gate_up = run.expand(layer, UP, x, self.gate_up, routes)
        share = weights.flatten().index_select(0, routes.order)
        inner = gated_rows(gate_up, share, self.gate_up_bias, routes, self.config.clamp)
        out = onto + run.contract(layer, DOWN, inner, self.down, routes)
        if self.down_bias is not None:
            spread = weights.new_zeros(len(x), self.config.experts + routes.partial)
            spread = spread.scatter_add(1, routes.experts, weights).to(x.dtype)
            spread = spread[:, : self.config.experts].contiguous()
            out = out + batch_invariant.linear(spread, self.down_bias.T, None)
        if self.shared is not None and self.shared_gate is not None:
            gate = run.project(layer, SHARED_GATE, x, self.shared_gate, None)
            out = out + row_wise(torch.sigmoid, gate) * self.shared.alone(layer, x, run)
        return out

    def _forward_few(self, layer: int, x: Tensor, onto: Tensor, run: Pass) -> Tensor:
        """The same for few tokens on a GPU, without sorting them."""
        from tinkex.engine.kernels.mixtures import few_experts, pair_experts

        config, lora, alone = self.config, run.lora, len(x) <= pair_experts.TOKENS
        thin = None if lora is None else lora.shrink_tokens(layer, UP, x)
        choice = (config.active, config.renormalise)
        if alone:
            routes = pair_experts.route(x, self.router, self.router_bias, *choice)
        else:
            logits = F.linear(x.float(), self.router, self.router_bias)
            routes = few_experts.route(logits, *choice)
        run.routed(layer, routes.experts)
        added = None
        if lora is not None and thin is not None:
            added = lora.expand_pairs(layer, UP, thin, routes)
        first = pair_experts.up if alone else few_experts.up
        inner = first(x, self.gate_up, self.gate_up_bias, added, routes, config.clamp)
        thin = None if lora is None else lora.shrink_pairs(layer, DOWN, inner, routes)
        shared = gate = None
        if self.shared is not None and self.shared_gate is not None:
            gate = run.project(layer, SHARED_GATE, x, self.shared_gate, None)
            shared = self.shared.alone(layer, x, run)
        second = pair_experts.down_onto if alone else few_experts.down_onto
        out: Tensor = second(onto, inner, self.down, self.down_bias, routes, shared, gate)
        if lora is not None and thin is not None:
            lora.expand_tokens(layer, DOWN, thin, out)
        return out

    def _own(self, chosen: Tensor) -> Routes:
        """The routes to the experts that are here."""
        config = self.config
        if config.choices is None:
            return Routes(chosen, config.experts)
        own = chosen - config.first
        elsewhere = (own < 0) | (own >= config.experts)
        return Routes(own.masked_fill(elsewhere, config.experts), config.experts, partial=True)

    def _route(self, x: Tensor, kept: KeptRoutes | None) -> tuple[Tensor, Tensor]:
        """Weights [N, active] and where each token goes. A softmax over all experts, renormalised,
        is one over the chosen alone. Choices that are kept are made again, with today's weights."""
        logits = batch_invariant.linear(x.float(), self.router, self.router_bias)
        scores = logits if self.config.renormalise else logits.softmax(-1)
        weights, chosen = torch.topk(scores, self.config.active, dim=-1)
        if kept is not None:
            chosen = torch.where(kept.known[:, None], kept.experts, chosen)
            weights = scores.gather(1, chosen)
        if self.config.renormalise:
            weights = weights.softmax(-1)
        return weights, chosen


def expert_product(slot: str, expert: int) -> str:
    """The name of one expert's product among a layer's."""
    return f"{slot}.{expert}"
