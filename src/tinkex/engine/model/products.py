"""The frozen matrix products of a decoder, made as fast as the device can.

On the CPU torch's plain float32 product is slow for a handful of rows on some processors. There the
matrices are packed once into oneDNN's own layout, which serves any number of rows; this costs a
second copy of them. Knows nothing of adapters.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

PACKED_ROWS = 16
"""Rows the packed layout is chosen for. It serves others as well; see benchmarks/engine_decode."""

MIN_ROWS = 4
"""Fewer rows than this take longer than this many in the packed layout: callers pad."""

MAX_MEMORY_SHARE = 0.25
"""Of the machine's memory that the packed copy may take; a larger model is not packed."""


class FrozenProducts:
    """x @ weight.T + bias for a model's own matrices, told apart by (layer, slot)."""

    def __init__(self, sample: Tensor, total_bytes: int) -> None:
        """`sample` is any of the matrices; `total_bytes` what all of them take."""
        self._packed: dict[tuple[int, str], Tensor] = {}
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.packs = total_bytes <= MAX_MEMORY_SHARE * memory and _packing_works(sample)

    @property
    def min_rows(self) -> int:
        return MIN_ROWS if self.packs else 1

    def product(
        self, layer: int, slot: str, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        if not self.packs:
            return F.linear(x, weight, bias)
        packed = self._packed.get((layer, slot))
        if packed is None:
            packed = self._packed[layer, slot] = _pack(weight)
        return _linear(x, packed, bias)


def _packing_works(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        small = weight[:64].contiguous()
        x = weight[:MIN_ROWS].contiguous()
        return torch.allclose(_linear(x, _pack(small), None), F.linear(x, small), atol=1e-4)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def _pack(weight: Tensor) -> Tensor:
    ops: Any = torch.ops.mkldnn
    packed: Tensor = ops._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)
    return packed


def _linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    ops: Any = torch.ops.mkldnn
    result: Tensor = ops._linear_pointwise(x, packed, bias, "none", [], "")
    return result
