"""Adapters on disk: of dense models in the layout that PEFT loads unchanged, of mixtures and
hybrids, which PEFT cannot hold so, in that of the hosted service."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.adapters.tensor_files import read_tensors
from tinkex.engine.errors import UserError
from tinkex.engine.finite import all_finite, trace
from tinkex.engine.model.slots import UNEMBED, UNEMBED_LAYER
from tinkex.engine.pieces import Pieces, at_once

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_PREFIX = "base_model.model."
_HOSTED_UNEMBED = "model.unembed_tokens"
"""What the hosted service calls it: the cookbook knows by it what to do where it is tied."""

# Settings that would change the product; only these values are computed here.
_NEUTRAL: Mapping[str, Any] = {
    "use_dora": False,
    "lora_bias": False,
    "bias": "none",
    "fan_in_fan_out": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layer_replication": None,
    "use_qalora": False,
    "trainable_token_indices": None,
}


def write_adapter(weights: AdapterWeights, folder: Path) -> None:
    """Write both files into an existing folder."""
    unembed = UNEMBED if _fits_peft(weights) else _HOSTED_UNEMBED
    paths = {
        key: unembed if key[0] == UNEMBED_LAYER else module_path(*key) for key in weights.factors
    }
    config = adapter_config(weights.rank, weights.scaling, _last_names(paths.values()))
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    tensors: dict[str, Tensor] = {}
    for key, (a, b) in weights.factors.items():
        name = _PREFIX + paths[key]
        tensors[f"{name}.lora_A.weight"] = a.detach().cpu().contiguous()
        tensors[f"{name}.lora_B.weight"] = b.detach().cpu().contiguous()
    save_file(tensors, str(folder / WEIGHTS), metadata={"format": "pt"})


def read_adapter(folder: Path, device: torch.device | str = "cpu") -> AdapterWeights:
    """The adapter in a folder of that layout, in float32; `UserError` names what does not fit."""
    return at_once(reading_adapter(folder, device))


def reading_adapter(folder: Path, device: torch.device | str) -> Pieces[AdapterWeights]:
    config = _read_config(folder / CONFIG)
    rank = config["r"]
    root = math.sqrt(rank) if config.get("use_rslora") else rank
    try:
        tensors = yield from read_tensors(folder / WEIGHTS, device)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{WEIGHTS} cannot be read: {error}") from None
    factors: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
    for name in sorted(tensors):
        if name.endswith(".lora_A.weight"):
            stem = name.removesuffix(".lora_A.weight")
            other = f"{stem}.lora_B.weight"
            if other not in tensors:
                raise UserError(f"{WEIGHTS}: {name!r} has no {other!r} beside it")
            factors[_module_key(stem)] = (tensors[name].float(), tensors[other].float())
        elif not name.endswith(".lora_B.weight"):
            raise UserError(f"{WEIGHTS}: {name!r} is not a LoRA factor")
    _check_ranks(factors, rank, len(tensors))
    refuse_unfinite(tensors, WEIGHTS, "take a checkpoint from before its training diverged")
    return AdapterWeights(rank, config["lora_alpha"] / root, factors)


def refuse_unfinite(tensors: Mapping[str, Tensor], file: str, fix: str) -> None:
    """`UserError` names the first tensor that holds NaN or infinity. Runs that are trained here
    never get there: a step that would is refused."""
    traces = {name: trace(tensor) for name, tensor in tensors.items()}
    if not all_finite(list(traces.values())):
        name = next(name for name, found in sorted(traces.items()) if not all_finite([found]))
        raise UserError(f"{file}: {name!r} holds NaN or infinity; {fix}")


def adapter_config(
    rank: int, scaling: float, modules: list[str], base: str | None = None
) -> dict[str, Any]:
    """What PEFT is told of an adapter."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha_of(rank, scaling),
        "lora_dropout": 0.0,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }


def alpha_of(rank: int, scaling: float) -> float:
    """Whole where it is within rounding, so that reading it back gives the same scaling."""
    alpha = scaling * rank
    return round(alpha) if math.isclose(alpha, round(alpha), rel_tol=1e-12) else alpha


def module_path(layer: int, module: str) -> str:
    """A module's path in a Hugging Face model."""
    return module if module == UNEMBED else f"model.layers.{layer}.{module}"


def _fits_peft(weights: AdapterWeights) -> bool:
    """Whether all of its modules are modules of the model: neither experts nor parts of one."""
    return not any("experts" in module or "linear_attn" in module for _, module in weights.factors)


def _last_names(paths: Iterable[str]) -> list[str]:
    """The modules' own names, each once, in the order of a layer."""
    return list(dict.fromkeys(path.rpartition(".")[2] for path in paths))


def _module_key(stem: str) -> tuple[int, str]:
    path = stem.removeprefix(_PREFIX)
    if path in (UNEMBED, _HOSTED_UNEMBED):
        return UNEMBED_LAYER, UNEMBED
    found = re.fullmatch(r"model\.layers\.(\d+)\.(\w+(?:\.\w+)+)", path)
    if found is None:
        raise UserError(f"{WEIGHTS}: {stem!r} is not a module this engine adapts")
    return int(found[1]), found[2]


def _check_ranks(
    factors: Mapping[tuple[int, str], tuple[Tensor, Tensor]], rank: int, count: int
) -> None:
    if not factors or count != 2 * len(factors):
        raise UserError(f"{WEIGHTS} holds {count} tensors but {len(factors)} pairs of factors")
    for (layer, module), (a, b) in factors.items():
        shaped = a.ndim == b.ndim == (3 if ".experts." in module else 2)
        if not shaped or a.shape[-2] != rank or b.shape[-1] != rank:
            raise UserError(f"{WEIGHTS}: {module_path(layer, module)} is not of rank {rank}")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise UserError(f"{path.name} does not describe a LoRA adapter")
    for key, value in _NEUTRAL.items():
        if config.get(key, value) not in (value, None):
            raise UserError(f"{path.name}: {key} = {config[key]!r} is not supported")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, (int, float)) or alpha <= 0:
        raise UserError(f"{path.name}: r and lora_alpha must be above 0, not {rank!r}, {alpha!r}")
    return config
