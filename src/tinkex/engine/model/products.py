"""The frozen matrix products of a decoder, made as fast as the device can.

On the CPU torch's plain float32 product is slow for a handful of rows. There each large matrix is
kept a second time: as halves where its values fit (`half_weights`), else in oneDNN's own float32
layout. Small ones stay as they are: the way to another library takes longer than the product.
Knows nothing of adapters.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.cpu import half_weights, onednn
from tinkex.engine.cpu.half_weights import HalfProduct, fitting_exponent, halves_work
from tinkex.engine.model.decoder import Weights
from tinkex.engine.model.matrices.frozen import Matrix
from tinkex.engine.model.ops import logits

PACKED_MIN_ROWS = 4
"""Fewer rows than this take longer than this many in oneDNN's layout: callers pad."""

MAX_MEMORY_SHARE = 0.25
"""Of the machine's memory that the second copy may take; of a larger model there is none."""

_SAMPLED_ROWS = 1024
"""Of one matrix, to tell whether the model is of 16 bits. Each matrix is then looked at whole."""

_Product: TypeAlias = Callable[[Tensor], Tensor]


class FrozenProducts:
    """x @ weight.T + bias for a model's own matrices, told apart by (layer, slot).

    A product of fewer than `min_rows` rows takes longer than one of `min_rows`, so callers pad;
    one of up to `free_rows` takes no longer than one of a single row.
    """

    def __init__(self, weights: Weights) -> None:
        self._products: dict[tuple[int, str], _Product] = {}
        self._waiting = weights.products()
        self._unembed = weights.unembed
        sample = weights.unembed if isinstance(weights.unembed, Tensor) else weights.embed
        total = sum(tensor.nbytes for tensor in weights.tensors())
        room = MAX_MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        plain = sample.device.type != "cpu" or sample.dtype != torch.float32 or not onednn.works()
        plain = plain or sample is not weights.unembed
        small = not plain and not any(_large(weight) for _, weight, _ in weights.products())
        plain = plain or small
        self._halves = not plain and total / 2 <= room and _fits(sample)
        self._packs = not plain and total <= room
        self.min_rows = PACKED_MIN_ROWS if self._packs and not self._halves else 1
        # Of a small model's step the products are the lesser part.
        self.free_rows = half_weights.FREE_ROWS if self._halves or small else self.min_rows

    def prepare(self) -> bool:
        """Get one more product ready before it is asked for; False if all are."""
        for key, weight, bias in self._waiting:
            if key not in self._products:
                self._products[key] = self._make(weight, bias)
                return True
        return False

    def product(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        product = self._products.get((layer, slot))
        if product is None:
            product = self._products[layer, slot] = self._make(weight, bias)
        return product(x)

    def few_rows(self, layer: int, slot: str, x: Tensor, weight: Tensor) -> Tensor:
        """The same for callers who cannot pad: x may have fewer rows than `min_rows`."""
        short = self.min_rows - len(x)
        if short <= 0:
            return self.product(layer, slot, x, weight, None)
        return self.product(layer, slot, F.pad(x, (0, 0, 0, short)), weight, None)[: len(x)]

    def once(self, x: Tensor, weight: Tensor) -> Tensor:
        """The same with a matrix that is gone afterwards: nothing is got ready for it."""
        packs = _large(weight) and (self._halves or self._packs)
        short = (PACKED_MIN_ROWS if packs else self.min_rows) - len(x)
        filled = F.pad(x, (0, 0, 0, max(0, short)))
        return (onednn.linear if packs else F.linear)(filled, weight)[: len(x)]

    def _make(self, weight: Matrix, bias: Tensor | None) -> _Product:
        if not isinstance(weight, Tensor):
            if weight is self._unembed:
                return weight.logits
            return lambda x: weight.linear(x, bias)
        if not _large(weight):
            return lambda x: F.linear(x, weight, bias)
        exponent = fitting_exponent(weight) if self._halves else None
        if exponent is not None:
            few = HalfProduct(weight, bias, exponent)
            return lambda x: (
                few(x) if len(x) <= half_weights.ROWS else onednn.linear(x, weight, bias)
            )
        if self._packs:
            packed = onednn.pack(weight)
            return lambda x: onednn.linear(x, packed, bias)
        if weight is self._unembed:
            return lambda x: logits(x, weight)
        return lambda x: F.linear(x, weight, bias)


def _large(weight: Matrix) -> bool:
    return isinstance(weight, Tensor) and weight.numel() >= onednn.LARGE_MATRIX


def _fits(sample: Tensor) -> bool:
    return halves_work() and fitting_exponent(sample[:_SAMPLED_ROWS]) is not None
