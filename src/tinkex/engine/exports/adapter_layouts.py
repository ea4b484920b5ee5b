"""Adapters as PEFT and vLLM read them. Loaded in the wrong layout an adapter is silently dropped.

peft          PEFT on transformers 5: experts are one parameter, factors flat over rank and expert
peft-experts  a pair of 2-D factors for every expert: older transformers, SGLang, PEFT on Qwen3-MoE
vllm          as vLLM wants it of the family, with one rank for all and the scaling in the B factors
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.adapters.peft_files import CONFIG, WEIGHTS, adapter_config, alpha_of
from tinkex.engine.errors import UserError
from tinkex.engine.exports.targets import GATE_UP, Target, targets
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.families import family_of


@dataclass(frozen=True, slots=True)
class Base:
    """The model an adapter belongs to: what the configuration calls it, and where its files keep
    the decoder."""

    name: str | None
    config: ModelConfig
    prefix: str = "model"


def write_peft(weights: AdapterWeights, base: Base, folder: Path) -> int:
    """For `PeftModel.from_pretrained`; returns the largest rank of a module."""
    found = targets(weights, base.config)
    _check_read_by_peft(found, base.config)
    _save_tensors(found, "model", 1.0, folder, flat=True)
    modules = _names(target for target in found if not target.parameter)
    parameters = _names(target for target in found if target.parameter)
    config = _patterned(weights, base, found, modules)
    _save_config(config | {"target_parameters": parameters or None}, folder)
    return max(target.rank for target in found)


def write_peft_experts(weights: AdapterWeights, base: Base, folder: Path) -> int:
    """With modules for every expert; returns the largest rank of a module."""
    if not family_of(base.config.family).experts_are_modules:
        raise UserError(
            f"{base.config.family} has no modules by expert in any library: export it as peft, "
            "vllm or merged"
        )
    found = targets(weights, base.config, fused=False)
    _check_read_by_peft(found, base.config)
    _save_tensors(found, "model", 1.0, folder, flat=False)
    modules = list(dict.fromkeys(target.parameter or target.module for target in found))
    _save_config(_patterned(weights, base, found, modules), folder)
    return max(target.rank for target in found)


def write_vllm(weights: AdapterWeights, base: Base, folder: Path) -> int:
    """For `vllm serve --enable-lora`; returns the least `--max-lora-rank`."""
    flat = family_of(base.config.family).flat_in_vllm
    found = targets(weights, base.config, fused=flat)
    _save_tensors(found, base.prefix, weights.scaling, folder, flat=flat)
    rank = max(target.rank for target in found)
    leaves = [target.name.rpartition(".")[2] for target in found]
    _save_config(adapter_config(rank, 1.0, list(dict.fromkeys(leaves)), base.name), folder)
    return rank


def _check_read_by_peft(found: Sequence[Target], config: ModelConfig) -> None:
    """PEFT would load the rest of the adapter and drop such layers without a word."""
    alone = [t for t in found if t.module.startswith("mlp.") and not t.parameter]
    if config.mixes and alone and not family_of(config.family).lone_mlps_in_peft:
        raise UserError(
            f"layer {alone[0].layer} has no experts, and PEFT takes its {alone[0].module} for "
            "theirs and drops it: export it as vllm or merged"
        )


def _save_tensors(
    found: Sequence[Target], prefix: str, scale: float, folder: Path, *, flat: bool
) -> None:
    tensors: dict[str, Tensor] = {}
    for target in found:
        for path, a, b in _pairs(target, target.path(prefix), flat=flat):
            tensors[f"base_model.model.{path}.lora_A.weight"] = a.contiguous()
            tensors[f"base_model.model.{path}.lora_B.weight"] = (b * scale).contiguous()
    save_file(tensors, str(folder / WEIGHTS), metadata={"format": "pt"})


def _pairs(target: Target, path: str, *, flat: bool) -> Iterator[tuple[str, Tensor, Tensor]]:
    if not target.parameter:
        yield path, target.a, target.b
    elif flat:
        yield _flat(target, path)
    else:
        for expert, (a, b) in enumerate(zip(*target.expanded(), strict=True)):
            yield f"{path}.{expert}.{target.parameter}", a.clone(), b.clone()


def _flat(target: Target, path: str) -> tuple[str, Tensor, Tensor]:
    """Of all experts in two matrices: A by expert, then rank; B by rank, then expert. PEFT wraps
    gate and up first, so that they are the base layer of down."""
    a, b = target.expanded()
    place = f"{path}.base_layer" if target.parameter == GATE_UP else path
    return place, a.flatten(0, 1), b.permute(1, 2, 0).flatten(1)


def _patterned(
    weights: AdapterWeights, base: Base, found: Sequence[Target], modules: list[str]
) -> dict[str, Any]:
    """A configuration whose patterns name the modules of another rank."""
    odd = {target.name: target.rank for target in found if target.rank != weights.rank}
    return adapter_config(weights.rank, weights.scaling, modules, base.name) | {
        "rank_pattern": odd,
        "alpha_pattern": {name: alpha_of(rank, weights.scaling) for name, rank in odd.items()},
    }


def _names(found: Iterator[Target]) -> list[str]:
    return list(dict.fromkeys(target.name for target in found))


def _save_config(config: dict[str, Any], folder: Path) -> None:
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
