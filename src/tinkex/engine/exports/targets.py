"""The matrices of a base model that an adapter changes, under the names transformers gives them.

An archive has a pair of factors for every module it was trained on. Where transformers keeps
several modules in one matrix, their pairs become one: the A factors one below the other, the B
factors along a diagonal, so that the product is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.adapters.layout import AdapterLayout, AdapterWeights
from tinkex.engine.errors import UserError
from tinkex.engine.messages import LoraSpec
from tinkex.engine.model.block_configs import ExpertsConfig
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.families import family_of
from tinkex.engine.model.slots import UNEMBED_LAYER

GATE_UP, GATE, UP, DOWN = "gate_up_proj", "gate_proj", "up_proj", "down_proj"
_JOINED = {
    "linear_attn.in_proj_qkv": tuple(f"linear_attn.in_proj_{part}" for part in "qkv"),
}
"""Modules of transformers and the adapted ones that lie in them."""
_STORED_JOINED = {
    "self_attn.qkv_proj": tuple(f"self_attn.{part}_proj" for part in "qkv"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""More of them in families that store those in one tensor."""
_W1, _W2, _W3 = (f"mlp.experts.w{number}" for number in (1, 2, 3))
_EXPERTS = "mlp.experts"


@dataclass(frozen=True, slots=True)
class Target:
    """A matrix, and the factors of what is added to it: scaling · B A.

    Of experts the factors have the expert in front, or 1 where all share one, and `parameter` names
    the stack of their matrices in the module."""

    layer: int
    module: str
    """Within the layer, of the unembedding as a whole."""
    a: Tensor
    b: Tensor
    parameter: str = ""

    @property
    def rank(self) -> int:
        return self.a.shape[-2]

    @property
    def name(self) -> str:
        return f"{self.module}.{self.parameter}" if self.parameter else self.module

    def path(self, prefix: str) -> str:
        """Of the module in a model whose decoder lies under `prefix`."""
        if self.layer == UNEMBED_LAYER:
            return self.module
        return f"{prefix}.layers.{self.layer}.{self.module}"

    @property
    def experts(self) -> int:
        return max(len(self.a), len(self.b)) if self.parameter else 0

    def expanded(self) -> tuple[Tensor, Tensor]:
        """Factors of experts with one of each for every expert."""
        return self.a.expand(self.experts, -1, -1), self.b.expand(self.experts, -1, -1)


def targets(weights: AdapterWeights, config: ModelConfig, *, fused: bool = True) -> list[Target]:
    """All that the adapter changes, experts' gate and up as one matrix or, not `fused`, apart;
    `UserError` where it was not trained on such a model."""
    check_base(weights, config)
    layers: dict[int, dict[str, tuple[Tensor, Tensor]]] = {}
    for (layer, module), pair in sorted(weights.factors.items(), key=lambda item: item[0]):
        layers.setdefault(layer, {})[module] = pair
    return [
        target for layer, own in layers.items() for target in _of_layer(config, layer, own, fused)
    ]


def check_base(weights: AdapterWeights, config: ModelConfig) -> None:
    """Every module must be one of this model's, with its shape."""
    every = AdapterLayout(config, LoraSpec(weights.rank, train_unembed=True))
    known = every.modules(torch.empty(every.size, device="meta"))
    for key, pair in weights.factors.items():
        shapes = tuple(tuple(factor.shape) for factor in pair)
        wanted = tuple(tuple(factor.shape) for factor in known[key]) if key in known else None
        if shapes != wanted:
            what = f"takes {wanted}" if wanted else "has no such module"
            raise UserError(
                f"the adapter was not trained on this base model: {key[1]} of layer {key[0]} has "
                f"factors of {shapes}, a {config.family} model of these sizes {what}"
            )


def interleaved(config: ModelConfig, layer: int) -> bool:
    """Whether the experts' rows of gate and up alternate and their matrices are transposed, as in
    gpt-oss."""
    mlp = config.layers[layer].mlp
    return isinstance(mlp, ExpertsConfig) and mlp.clamp is not None


def _of_layer(
    config: ModelConfig, layer: int, modules: dict[str, tuple[Tensor, Tensor]], fused: bool
) -> Iterator[Target]:
    joined = _JOINED | (_STORED_JOINED if family_of(config.family).fused else {})
    apart = {part for parts in joined.values() for part in parts} | {_W1, _W2, _W3}
    for module, (a, b) in modules.items():
        if module not in apart:
            yield Target(layer, transformers_path(module), a, b)
    for module, parts in joined.items():
        if parts[0] in modules:
            yield Target(layer, module, *side_by_side([modules[part] for part in parts]))
    if _W1 in modules:
        yield from _of_experts(config, layer, modules, fused)


def _of_experts(
    config: ModelConfig, layer: int, modules: dict[str, tuple[Tensor, Tensor]], fused: bool
) -> Iterator[Target]:
    if fused:
        a, b = side_by_side([modules[_W1], modules[_W3]])
        if interleaved(config, layer):
            b = torch.stack(b.chunk(2, dim=-2), dim=-2).flatten(-3, -2)
        yield Target(layer, _EXPERTS, a, b, GATE_UP)
    else:
        yield Target(layer, _EXPERTS, *modules[_W1], GATE)
        yield Target(layer, _EXPERTS, *modules[_W3], UP)
    yield Target(layer, _EXPERTS, *modules[_W2], DOWN)


def transformers_path(module: str) -> str:
    """Archives of gpt-oss write `attn` for what is `self_attn` in transformers."""
    return module.replace("attn.", "self_attn.", 1) if module.startswith("attn.") else module


def side_by_side(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One pair for matrices that lie one below the other. Where all have the same A, as archives of
    the hosted service have for gate and up, the rank stays as it is."""
    first = pairs[0][0]
    if all(torch.equal(first, a) for a, _ in pairs[1:]):
        return first, torch.cat([b for _, b in pairs], dim=-2)
    a = torch.cat([a for a, _ in pairs], dim=-2)
    heights, ranks = [b.shape[-2] for _, b in pairs], [b.shape[-1] for _, b in pairs]
    b = pairs[0][1].new_zeros(*pairs[0][1].shape[:-2], sum(heights), sum(ranks))
    row = column = 0
    for (_, own), height, rank in zip(pairs, heights, ranks, strict=True):
        b[..., row : row + height, column : column + rank] = own
        row, column = row + height, column + rank
    return a, b
