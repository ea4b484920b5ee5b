"""Models with seeded weights of any family and shape, made on the device: nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tinkex.engine.builtin.tiny_tokenizer import write_tokenizer
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.families import parse_config
from tinkex.engine.model.loading import read_weights
from tinkex.engine.model.matrices.float8 import Float8
from tinkex.engine.model.tensors import Tensors


class SeededTensors(Tensors):
    """Matrices that keep the size of what they multiply; norms of one."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self._generator = torch.Generator(device).manual_seed(0)

    def has(self, name: str) -> bool:
        return True

    def bytes(self, name: str, shape: tuple[int, ...]) -> Tensor:
        raise NotImplementedError("seeded experts are made wide")

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape, device=self.device, dtype=self.dtype)
        values = torch.empty(shape, device=self.device, dtype=self.dtype)
        return values.normal_(0, shape[-1] ** -0.5, generator=self._generator)


def seeded_decoder(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, base: Float8 | None = None
) -> Decoder:
    return Decoder(config, read_weights(config, SeededTensors(device, dtype), base))


class SavedTensors(SeededTensors):
    """The same, each kept in a folder as it is made: a model folder with seeded weights."""

    SHARD = 4 << 30

    def __init__(self, device: torch.device, dtype: torch.dtype, folder: Path) -> None:
        super().__init__(device, dtype)
        self._folder, self._count = folder, 0
        self._names: dict[str, str] = {}
        self._shard: dict[str, Tensor] = {}

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        made = super().read(name, shape)
        self._shard[name] = made.cpu()
        if sum(tensor.nbytes for tensor in self._shard.values()) > self.SHARD:
            self.flush()
        return made

    def flush(self) -> None:
        file = f"model-{self._count:05}.safetensors"
        save_file(self._shard, self._folder / file)
        self._names |= dict.fromkeys(self._shard, file)
        self._shard, self._count = {}, self._count + 1
        index = {"metadata": {}, "weight_map": self._names}
        (self._folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_seeded_folder(facts: dict[str, Any], folder: Path, device: torch.device) -> None:
    """A folder with this config.json, seeded bfloat16 weights and a tokenizer of bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(facts))
    write_tokenizer(folder, template="", max_length=facts["max_position_embeddings"])
    tensors = SavedTensors(device, torch.bfloat16, folder)
    read_weights(parse_config(facts), tensors)
    tensors.flush()
