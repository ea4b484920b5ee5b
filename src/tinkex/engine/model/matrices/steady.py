"""Batch-invariant matrices: frozen ones whose products are the same bits for any number of rows.

The values stay as they are; only who multiplies changes: one kernel for training and sampling,
forwards and backwards, instead of a library that chooses by the shape of a batch. Needs Triton.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tinkex.engine.errors import ModelError
from tinkex.engine.model.blocks.block import with_matrices
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Layer
from tinkex.engine.model.matrices.frozen import FrozenMatrix, Matrix

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class SteadyMatrix(FrozenMatrix):
    """`values` [outputs, inputs], in the model's dtype."""

    values: Tensor

    steady: ClassVar[bool] = True

    def linear(self, x: Tensor, bias: Tensor | None, onto: Tensor | None = None) -> Tensor:
        from tinkex.engine.kernels.steady.product import product

        return product(
            x.contiguous(), self.values, bias, None if onto is None else onto.contiguous()
        )

    def logits(self, x: Tensor) -> Tensor:
        from tinkex.engine.kernels.steady.product import product

        return product(x.contiguous(), self.values, dtype=torch.float32)

    def times(self, x: Tensor) -> Tensor:
        from tinkex.engine.kernels.steady.product import product

        return product(x.contiguous(), self.values.T)

    def tensors(self) -> Iterator[Tensor]:
        yield self.values


class Steady:
    """The form itself: what a model is loaded into."""

    def layer(self, layer: Layer) -> Layer:
        mixer, mlp = (with_matrices(block, SteadyMatrix) for block in (layer.mixer, layer.mlp))
        return replace(layer, mixer=mixer, mlp=mlp)

    def head(self, weight: Tensor) -> Matrix:
        return SteadyMatrix(weight)


def settle(matrices: Iterable[Matrix]) -> None:
    """Look, on the device they are on, whether products by many rows and by few are the same bits,
    one matrix of each shape; log it where they are not, and are made more slowly then."""
    from tinkex.engine.kernels.steady.product import agree

    seen: set[torch.Size] = set()
    for matrix in matrices:
        if isinstance(matrix, SteadyMatrix) and matrix.values.shape not in seen:
            seen.add(matrix.values.shape)
            if not (agree(matrix.values) and agree(matrix.values.T)):
                logger.warning("steady: this card needs one tiling for any number of rows: slower")
                return


def check_steady(config: ModelConfig) -> None:
    """Raises `ModelError` for a model whose blocks have no batch-invariant kernels."""
    parts = {
        "mixtures of experts": config.mixes,
        "layers of linear attention": bool(config.recurrent),
        "attention sinks": any(mixer is not None and mixer.sinks for mixer in config.attends),
        "a model shared by several devices": config.shard is not None,
    }
    lacking = [name for name, there in parts.items() if there]
    if lacking:
        raise ModelError(
            f"steady: there are no batch-invariant kernels for {' and '.join(lacking)} yet, and "
            f"this {config.family} has them; leave --steady out"
        )
