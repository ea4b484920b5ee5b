"""Models with seeded weights of any family and shape, made on the device: nothing is downloaded."""

from __future__ import annotations

import torch
from torch import Tensor

from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import read_weights
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


def seeded_decoder(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Decoder:
    return Decoder(config, read_weights(config, SeededTensors(device, dtype)))
