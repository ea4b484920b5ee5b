"""LoRA on a transformers model by plain autograd: the reference for layouts that PEFT cannot hold.

Every factor is a leaf. Linear modules get a hook that adds scaling · B A x; mixtures of experts are
computed expert by expert, with one factor shared by all on the side of the residual stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.adapters.peft_files import module_path

FUSED = {
    "linear_attn.in_proj_qkv": [f"linear_attn.in_proj_{part}" for part in "qkv"],
    "self_attn.qkv_proj": [f"self_attn.{part}_proj" for part in "qkv"],
    "mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"],
}

Leaves = dict[tuple[int, str], tuple[Tensor, Tensor]]


@contextmanager
def attached(model: Any, weights: AdapterWeights) -> Iterator[Leaves]:
    """The model computes with these factors inside; yields the leaves that gather gradients."""
    leaves = {
        key: tuple(factor.detach().cpu().clone().requires_grad_() for factor in pair)
        for key, pair in weights.factors.items()
    }
    undo = [_attach(model, key, leaves, weights.scaling) for key in leaves]
    yield leaves
    for step in undo:
        step()


def _attach(model: Any, key: tuple[int, str], leaves: Any, scaling: float) -> Callable[[], None]:
    layer, module = key
    if ".experts." in module:
        return _attach_experts(model, layer, leaves, scaling)
    for fused, parts in FUSED.items():
        if module in parts and _has(model, f"model.layers.{layer}.{fused}"):
            return _attach_fused(model, layer, module, fused, leaves, scaling)
    handle = _find(model, module_path(layer, module)).register_forward_hook(
        _added(*leaves[key], scaling)
    )
    return handle.remove


def _find(model: Any, path: str) -> Any:
    return model.get_submodule(path.replace(".attn.", ".self_attn."))


def _added(a: Tensor, b: Tensor, scaling: float) -> Any:
    return lambda _, inputs, output: output + scaling * (inputs[0] @ a.T) @ b.T


def _has(model: Any, path: str) -> bool:
    return any(name == path for name, _ in model.named_modules())


def _attach_fused(
    model: Any, layer: int, module: str, fused: str, leaves: Any, scaling: float
) -> Callable[[], None]:
    """Of the adapters on one fused matrix, each on its own columns."""
    names = FUSED[fused]
    widths = [len(leaves[layer, name][1]) for name in names]
    start = sum(widths[: names.index(module)])
    a, b = leaves[layer, module]

    def hook(_: Any, inputs: Any, output: Tensor) -> Tensor:
        added = scaling * (inputs[0] @ a.T) @ b.T
        return output + F.pad(added, (start, output.shape[-1] - start - len(b)))

    linear = model.get_submodule(f"model.layers.{layer}.{fused}")
    handle = linear.register_forward_hook(hook)
    return handle.remove


def _attach_experts(model: Any, layer: int, leaves: Any, scaling: float) -> Callable[[], None]:
    experts = model.model.layers[layer].mlp.experts
    clamped = hasattr(experts, "limit")
    w1, w2, w3 = (leaves[layer, f"mlp.experts.w{n}"] for n in (1, 2, 3))

    def product(x: Tensor, weight: Tensor, pair: tuple[Tensor, Tensor], expert: int) -> Tensor:
        a, b = (factor[expert if len(factor) > 1 else 0] for factor in pair)
        return F.linear(x, weight) + scaling * (x @ a.T) @ b.T

    def clamped_expert(x: Tensor, expert: int) -> Tensor:
        """Of gpt-oss: transposed, gate and up alternating, biases, clamped."""
        both, bias = experts.gate_up_proj[expert].T, experts.gate_up_proj_bias[expert]
        gate = product(x, both[::2], w1, expert) + bias[::2]
        up = product(x, both[1::2], w3, expert) + bias[1::2]
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        inner = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        return (
            product(inner, experts.down_proj[expert].T, w2, expert) + experts.down_proj_bias[expert]
        )

    def plain_expert(x: Tensor, expert: int) -> Tensor:
        gate, up = experts.gate_up_proj[expert].chunk(2)
        inner = F.silu(product(x, gate, w1, expert)) * product(x, up, w3, expert)
        return product(inner, experts.down_proj[expert], w2, expert)

    def forward(x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            token, rank = torch.where(chosen == expert)
            found = (clamped_expert if clamped else plain_expert)(x[token], expert)
            out = out.index_add(0, token, found * shares[token, rank, None])
        return out

    experts.forward = forward
    return lambda: experts.__dict__.pop("forward", None)
