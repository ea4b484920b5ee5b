"""A Hugging Face model folder, judged by its `config.json` and its safetensors files' headers.

Reads kilobytes where loading reads gigabytes, and needs no torch: whoever is about to start an
engine learns in milliseconds that the folder is of a kind we do not compute, or was cut short.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinkex.engine.errors import ModelError
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.families import parse_config
from tinkex.engine.model.sizes import is_mxfp4

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_PREFIXES = ("model", "model.language_model")
"""Under which a decoder's tensors lie, alone or beside a vision tower."""

_HEADER_LIMIT = 100 * 1024 * 1024
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F4": 4, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8,
    "BOOL": 8,
}  # fmt: skip

Header = Mapping[str, Mapping[str, Any]]


def check_folder(folder: Path) -> None:
    """Raises `ModelError` for a folder whose model cannot be served as it lies there."""
    config = read_config(folder)
    if not (folder / INDEX).exists():
        _check_shape(config, read_header(folder / SINGLE))
        return
    shards = read_index(folder)
    headers = {name: read_header(folder / name) for name in sorted(set(shards.values()))}
    check_index(shards, headers)
    _check_shape(
        config, {name: entry for header in headers.values() for name, entry in header.items()}
    )


def _check_shape(config: ModelConfig, tensors: Header) -> None:
    """The mix-ups that names and shapes give away; loading compares every tensor."""
    wanted = [config.vocab_size, config.hidden_size]
    for prefix in _PREFIXES:
        embed = tensors.get(f"{prefix}.embed_tokens.weight")
        if embed is None:
            continue
        if embed["shape"] != wanted:
            raise ModelError(
                f"tensor '{prefix}.embed_tokens.weight' has shape {embed['shape']}; "
                f"config.json asks for {wanted}: it does not describe these weights"
            )
        last = f"{prefix}.layers.{len(config.layers) - 1}."
        if not any(name.startswith(last) for name in tensors):
            raise ModelError(f"the model folder is incomplete: no tensor is named {last}*")


def read_config(folder: Path) -> ModelConfig:
    return parse_config(read_json(folder / "config.json"))


def has_mxfp4(folder: Path) -> bool:
    """Whether the experts in this folder are packed."""
    return is_mxfp4(read_json(folder / "config.json"))


def read_index(folder: Path) -> dict[str, str]:
    """Which file holds which tensor, as the folder's index says."""
    shards = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict):
        raise ModelError(f"{INDEX} has no weight_map")
    return shards


def check_index(shards: Mapping[str, str], held: Mapping[str, Any]) -> None:
    """Refuse an index that names a tensor its file does not hold."""
    for tensor, name in shards.items():
        if tensor not in held[name]:
            raise ModelError(f"the model folder is incomplete: {name} does not hold {tensor!r}")


def read_header(path: Path) -> Header:
    """Type, shape and place of every tensor in a safetensors file that is as long as they say."""
    _require(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT):
            raise _damaged(path, f"its {size} bytes end before its header does")
        try:
            header = json.loads(file.read(length))
            end = max(_ends(header), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _damaged(path, "its header is not that of a safetensors file") from None
    if size != 8 + length + end:
        raise _damaged(path, f"it has {size} bytes, its header says {8 + length + end}")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _ends(header: dict[str, Any]) -> list[int]:
    """Where each tensor's bytes end; ValueError where they are not as many as its shape takes."""
    ends = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        bits = _BITS.get(entry["dtype"])
        if bits is not None and (end - begin) * 8 != bits * math.prod(entry["shape"]):
            raise ValueError(name)
        ends.append(end)
    return ends


def _damaged(path: Path, how: str) -> ModelError:
    return ModelError(f"{path.name} is damaged or cut short: {how}")


def _require(path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"the model folder is incomplete: {path.name} is missing in {path.parent}")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model folder."""
    _require(path)
    try:
        value = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise ModelError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path.name} must hold a JSON object")
    return value
