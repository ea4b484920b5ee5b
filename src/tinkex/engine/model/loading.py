"""Reads a Hugging Face model folder into a `Decoder`.

Files are memory-mapped and every tensor is copied at most once, straight to its final place; one
that already has the right dtype and device is used where it lies. A folder that is damaged or
incomplete is refused with the file or the tensor that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tinkex.engine.errors import ModelError
from tinkex.engine.model.config import ModelConfig, parse_config
from tinkex.engine.model.decoder import Decoder, LayerWeights, Weights

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def load_decoder(
    folder: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> Decoder:
    """The model in `folder` on `device`. `dtype` defaults to float32 on the CPU, else bfloat16."""
    path, place = Path(folder), torch.device(device)
    config = read_config(path)
    wanted = dtype or (torch.float32 if place.type == "cpu" else torch.bfloat16)
    return Decoder(config, _Reader(path, config, place, wanted).weights())


def read_config(folder: Path) -> ModelConfig:
    return parse_config(_read_json(folder / "config.json"))


class _Reader:
    """Takes tensors by name from a folder's safetensors files."""

    def __init__(
        self, folder: Path, config: ModelConfig, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._config, self._device, self._dtype = config, device, dtype
        self._files = _open_files(folder)
        self._unread = set(self._files)

    def weights(self) -> Weights:
        config = self._config
        embed = self._matrix("model.embed_tokens", config.vocab_size, config.hidden_size)
        layers = tuple(self._layer(index) for index in range(config.layers))
        final_norm = self._vector("model.norm.weight", config.hidden_size)
        unembed = embed
        if not config.tied:
            unembed = self._matrix("lm_head", config.vocab_size, config.hidden_size)
        self._refuse_leftovers()
        return Weights(embed, layers, final_norm, unembed)

    def _layer(self, index: int) -> LayerWeights:
        config, name = self._config, f"model.layers.{index}"
        hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
        attn, mlp = f"{name}.self_attn", f"{name}.mlp"
        qkv = [f"{attn}.{part}_proj" for part in "qkv"]
        sizes = [config.q_size, config.kv_size, config.kv_size]
        gate_up = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
        return LayerWeights(
            input_norm=self._vector(f"{name}.input_layernorm.weight", hidden),
            qkv=self._stacked(qkv, sizes, hidden),
            qkv_bias=self._biases(qkv, sizes) if config.qkv_bias else None,
            q_norm=self._vector(f"{attn}.q_norm.weight", head) if config.qk_norm else None,
            k_norm=self._vector(f"{attn}.k_norm.weight", head) if config.qk_norm else None,
            o=self._matrix(f"{attn}.o_proj", hidden, config.q_size),
            o_bias=self._biases([f"{attn}.o_proj"], [hidden]) if config.o_bias else None,
            post_norm=self._vector(f"{name}.post_attention_layernorm.weight", hidden),
            gate_up=self._stacked(gate_up, [inner, inner], hidden),
            gate_up_bias=self._biases(gate_up, [inner, inner]) if config.mlp_bias else None,
            down=self._matrix(f"{mlp}.down_proj", hidden, inner),
            down_bias=self._biases([f"{mlp}.down_proj"], [hidden]) if config.mlp_bias else None,
        )

    def _matrix(self, module: str, rows: int, columns: int) -> Tensor:
        return self._place(self._read(f"{module}.weight", (rows, columns)))

    def _vector(self, name: str, size: int) -> Tensor:
        return self._place(self._read(name, (size,)))

    def _stacked(self, modules: Sequence[str], sizes: Sequence[int], columns: int) -> Tensor:
        fused = torch.empty(sum(sizes), columns, dtype=self._dtype, device=self._device)
        for module, part in zip(modules, fused.split_with_sizes(list(sizes)), strict=True):
            part.copy_(self._read(f"{module}.weight", tuple(part.shape)))
        return fused

    def _biases(self, modules: Sequence[str], sizes: Sequence[int]) -> Tensor:
        parts = [self._vector(f"{m}.bias", size) for m, size in zip(modules, sizes, strict=True)]
        return torch.cat(parts)

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self._device, dtype=self._dtype)

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._files:
            raise ModelError(
                f"the model folder is incomplete: tensor {name!r} is in none of its files"
            )
        self._unread.discard(name)
        try:
            tensor: Tensor = self._files[name].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"tensor {name!r} cannot be read: {error}") from None
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise ModelError(
                f"tensor {name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}; "
                f"config.json asks for a floating-point one of shape {shape}"
            )
        return tensor

    def _refuse_leftovers(self) -> None:
        """A tensor nobody reads means that the maths of this folder is not ours."""
        harmless = (".rotary_emb.inv_freq",) + (("lm_head.weight",) if self._config.tied else ())
        left = sorted(name for name in self._unread if not name.endswith(harmless))
        if left:
            raise ModelError(
                f"the model folder holds {len(left)} tensors that {self._config.family!r} does not "
                f"use, first {left[0]!r}: its config.json does not describe its weights"
            )


def _open_files(folder: Path) -> dict[str, Any]:
    """Which open file holds which tensor."""
    if not (folder / INDEX).exists():
        handle = _open(folder / SINGLE)
        return dict.fromkeys(handle.keys(), handle)
    shards = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict):
        raise ModelError(f"{INDEX} has no weight_map")
    handles = {name: _open(folder / name) for name in sorted(set(shards.values()))}
    held = {name: set(handle.keys()) for name, handle in handles.items()}
    for tensor, name in shards.items():
        if tensor not in held[name]:
            raise ModelError(f"the model folder is incomplete: {name} does not hold {tensor!r}")
    return {tensor: handles[name] for tensor, name in shards.items()}


def _open(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"the model folder is incomplete: {path.name} is missing in {path.parent}")
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path.name} is damaged or cut short: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(f"the model folder is incomplete: {path.name} is missing in {path.parent}")
    try:
        value = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise ModelError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path.name} must hold a JSON object")
    return value
