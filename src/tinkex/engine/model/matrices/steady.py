"""Batch-invariant matrices: frozen ones whose products are the same bits for any number of rows.

The values stay as they are; only who multiplies changes: one kernel for training and sampling,
forwards and backwards, instead of a library that chooses by the shape of a batch. Needs Triton.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tinkex.engine.errors import ModelError
from tinkex.engine.model.blocks.block import with_matrices
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Layer, Weights
from tinkex.engine.model.matrices.frozen import FrozenMatrix, Matrix
from tinkex.engine.model.slots import UNEMBED

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


def settle(weights: Weights) -> None:
    """Look, on the device they are on, which ways to multiply by them find the same bits, once for
    each size; log it where products by many rows and by few differ, and are made more slowly."""
    from tinkex.engine.kernels.steady import product

    seen: set[tuple[torch.Size, torch.dtype]] = set()
    for (_, slot), matrix, _ in weights.products():
        assert isinstance(matrix, SteadyMatrix)
        values = matrix.values
        dtype = torch.float32 if slot == UNEMBED else values.dtype
        if (values.shape, dtype) in seen:
            continue
        seen.add((values.shape, dtype))
        if not (product.settle(values, dtype) and product.settle(values.T, values.dtype)):
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
