"""FP8 base weights: frozen matrices in float8 (e4m3), a power of two for every row of outputs.

A byte instead of two for each value: a decode step reads half as much. Scales are powers of two, so
widening a matrix to bfloat16 loses nothing, and every product is one with the same matrix, however
many rows it has. Activations keep their digits (W8A16), or are made float8 as well, row by row
(W8A8): then large products take the card's float8 units. Gradients always go through the widened
matrix. Needs a GPU with float8 products, and Triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.model.blocks.block import with_matrices
from tinkex.engine.model.decoder import Layer
from tinkex.engine.model.matrices.frozen import FrozenMatrix, Matrix

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0

ALIGNED = 16
"""Both sides of a matrix have to be multiples of it: the libraries ask for that."""

LEAST_OUTPUTS = 256
"""Smaller matrices, such as gates, stay as they are: they take no time, and digits matter."""

FEW = 64
"""Rows up to which `kernels.float8.few` is faster than a library: benchmarks/engine_float8."""

TWO_TERMS = 1024
"""Rows up to which two float8 products are faster than one with the widened matrix."""


@dataclass(frozen=True, slots=True, eq=False)
class Float8Matrix(FrozenMatrix):
    """`values` [outputs, inputs], `scales` float32 [outputs, 1]; `narrow` makes rows float8 too."""

    values: Tensor
    scales: Tensor
    counts: Tensor
    narrow: bool

    def linear(self, x: Tensor, bias: Tensor | None, onto: Tensor | None = None) -> Tensor:
        if not self.narrow and len(x) > TWO_TERMS:
            return _added(F.linear(x, self.widened(x.dtype), bias), onto)
        from tinkex.engine.kernels import float8 as kernel

        rows, row_scales = kernel.narrowed(x, 1 if self.narrow else 2)
        if len(x) <= FEW:
            dtype = x.dtype if onto is None else onto.dtype
            return kernel.few(
                rows, row_scales, self.values, self.scales, bias, onto, self.counts, dtype
            )
        found = _library(rows[0], row_scales[0], self, bias)
        if not self.narrow:
            found.add_(_library(rows[1], row_scales[1], self, None))
        return _added(found, onto)

    def times(self, x: Tensor) -> Tensor:
        return x @ self.widened(x.dtype)

    def widened(self, dtype: torch.dtype) -> Tensor:
        from tinkex.engine.kernels import float8 as kernel

        return kernel.widened(self.values, self.scales, dtype)

    def tensors(self) -> Iterator[Tensor]:
        yield from (self.values, self.scales, self.counts)


@dataclass(frozen=True, slots=True)
class Float8:
    """The form itself: what a model is loaded into."""

    narrow: bool

    def layer(self, layer: Layer) -> Layer:
        """The layer with its matrices in float8. Norms, routers and experts stay as they are."""
        mixer, mlp = (with_matrices(block, self.matrix) for block in (layer.mixer, layer.mlp))
        return replace(layer, mixer=mixer, mlp=mlp)

    def matrix(self, weight: Tensor) -> Matrix:
        return float8_matrix(weight, self.narrow)

    def head(self, weight: Tensor) -> Matrix:
        """The unembedding stays as it is: logits feel every digit."""
        return weight


def float8_matrix(weight: Tensor, narrow: bool) -> Matrix:
    """The matrix in float8, or as it is where it is none for that."""
    if len(weight) < LEAST_OUTPUTS or any(size % ALIGNED for size in weight.shape):
        return weight
    from tinkex.engine.kernels import float8 as kernel

    return Float8Matrix(*rounded(weight), kernel.counters(len(weight), weight.device), narrow)


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Values and scales of the float8 matrix nearest to this one."""
    share = (weight.abs().amax(1, keepdim=True).float() / LARGEST).clamp_min(1e-30)
    digits, exponent = torch.frexp(share)
    scales = torch.ldexp(torch.ones_like(share), exponent - (digits == 0.5).int())
    return (weight.float() / scales).to(E4M3), scales


def float8_works(device: torch.device) -> bool:
    """Whether this is a GPU that multiplies float8, with Triton to program it."""
    from importlib.util import find_spec

    if device.type != "cuda" or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


def _library(rows: Tensor, scales: Tensor, matrix: Float8Matrix, bias: Tensor | None) -> Tensor:
    return torch._scaled_mm(
        rows, matrix.values.T, scales, matrix.scales.T, bias, out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )  # fmt: skip


def _added(found: Tensor, onto: Tensor | None) -> Tensor:
    return found if onto is None else found.to(onto.dtype).add_(onto)
