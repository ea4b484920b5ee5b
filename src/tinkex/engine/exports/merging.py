"""A base model with an adapter added to its matrices: a folder like the base's, file by file.

Sums are made in float32 and stored as the base's are. What the adapter does not touch, a vision
tower included, is copied as it is. Experts in MXFP4 that the adapter changes are stored widened:
four bits could not hold the sum. A tied unembedding that the adapter changes gets a matrix of its
own, since the embedding must stay what it was.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.errors import ModelError
from tinkex.engine.exports.targets import GATE_UP, Target, interleaved, targets
from tinkex.engine.model import mxfp4
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.headers import INDEX, SINGLE, read_config, read_index, read_json
from tinkex.engine.model.slots import UNEMBED
from tinkex.engine.model.tensors import open_files

_EMBED, _HEAD = ".embed_tokens.weight", f"{UNEMBED}.weight"
_BLOCKS, _SCALES = "_blocks", "_scales"
_TEMPLATES = "additional_chat_templates"
"""A folder of chat templates beside the usual one, such as that for tools."""


@dataclass(frozen=True, slots=True)
class _Output:
    """A tensor to write: the stored one it comes from, and the product to add, if any."""

    source: str
    product: _Product | None = None


@dataclass(frozen=True, slots=True)
class _Product:
    a: Tensor
    b: Tensor
    scaling: float
    transposed: bool = False

    def added_to(self, matrix: Tensor) -> Tensor:
        product = self.scaling * (self.b @ self.a)
        total = matrix.float() + (product.mT if self.transposed else product)
        return total.to(matrix.dtype).contiguous()


def write_merged(weights: AdapterWeights, base: Path, folder: Path) -> None:
    """Write the sum into an existing, empty folder."""
    config, stored = read_config(base), open_files(base)
    plan = _plan(weights, config, set(stored))
    files = read_index(base) if (base / INDEX).exists() else dict.fromkeys(stored, SINGLE)
    index = {name: files[output.source] for name, output in plan.items()}
    size = 0
    for file in sorted(set(index.values())):
        names = [name for name in plan if index[name] == file]
        tensors = {name: _computed(plan[name], stored) for name in names}
        size += sum(tensor.nbytes for tensor in tensors.values())
        save_file(tensors, str(folder / file), metadata={"format": "pt"})
    if (base / INDEX).exists():
        _write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": index})
    _copy_others(base, folder)
    _write_config(base, folder, untied=config.tied and _HEAD in plan, packed=_packed(plan))


def _decoder_prefix(names: set[str]) -> str:
    """Where a model's files keep its decoder, alone or beside a vision tower."""
    found = sorted((n.removesuffix(_EMBED) for n in names if n.endswith(_EMBED)), key=len)
    if not found:
        raise ModelError(f"the model folder is incomplete: it holds no tensor named *{_EMBED}")
    return found[0]


def _plan(weights: AdapterWeights, config: ModelConfig, stored: set[str]) -> dict[str, _Output]:
    """What the merged folder holds."""
    prefix = _decoder_prefix(stored)
    plan = {name: _Output(name) for name in stored}
    for name, product in _products(weights, config, stored, prefix):
        if name == _HEAD and config.tied:
            plan[name] = _Output(prefix + _EMBED, product)
        elif name in stored:
            plan[name] = _Output(name, product)
        elif name + _BLOCKS in stored:
            del plan[name + _BLOCKS], plan[name + _SCALES]
            plan[name] = _Output(name + _BLOCKS, product)
        else:
            raise ModelError(f"the model folder is incomplete: tensor {name!r} is in no file")
    return plan


def _products(
    weights: AdapterWeights, config: ModelConfig, stored: set[str], prefix: str
) -> Iterator[tuple[str, _Product]]:
    """Every product and the tensor it belongs to, as this folder names it."""
    fused = any(name.removesuffix(_BLOCKS).endswith(f".experts.{GATE_UP}") for name in stored)
    for target in targets(weights, config, fused=fused):
        path = target.path(prefix)
        if not target.parameter:
            yield f"{path}.weight", _Product(target.a, target.b, weights.scaling)
        elif fused:
            transposed = interleaved(config, target.layer)
            product = _Product(target.a, target.b, weights.scaling, transposed)
            yield f"{path}.{target.parameter}", product
        else:
            yield from _by_expert(target, path, weights.scaling)


def _by_expert(target: Target, path: str, scaling: float) -> Iterator[tuple[str, _Product]]:
    for expert, (a, b) in enumerate(zip(*target.expanded(), strict=True)):
        yield f"{path}.{expert}.{target.parameter}.weight", _Product(a, b, scaling)


def _computed(output: _Output, stored: Mapping[str, Any]) -> Tensor:
    tensor: Tensor = stored[output.source].get_tensor(output.source)
    if output.product is None:
        return tensor
    if output.source.endswith(_BLOCKS):
        scales = output.source.removesuffix(_BLOCKS) + _SCALES
        # As transformers stores experts of gpt-oss that are not packed: [experts, in, out].
        tensor = mxfp4.widen(tensor, stored[scales].get_tensor(scales), torch.bfloat16).mT
    return output.product.added_to(tensor)


def _packed(plan: Mapping[str, _Output]) -> bool:
    return any(name.endswith(_BLOCKS) for name in plan)


def _copy_others(base: Path, folder: Path) -> None:
    """Tokenizer, chat template, generation settings: whatever lies beside the weights."""
    for path in sorted(base.iterdir()):
        weights = path.suffix in (".safetensors", ".bin", ".pt", ".gguf") or path.name == INDEX
        if path.is_file() and not weights and not path.name.startswith("."):
            shutil.copyfile(path, folder / path.name)
    if (base / _TEMPLATES).is_dir():
        shutil.copytree(base / _TEMPLATES, folder / _TEMPLATES)


def _write_config(base: Path, folder: Path, *, untied: bool, packed: bool) -> None:
    config = read_json(base / "config.json")
    if not packed:
        config.pop("quantization_config", None)
    for own in (config, config.get("text_config")):
        if untied and isinstance(own, dict) and (own is config or "tie_word_embeddings" in own):
            own["tie_word_embeddings"] = False
    _write_json(folder / "config.json", config)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
