"""The matrices of a small model for its decode steps: norms and adapters multiplied in.

A small model's matrix is quickly made, and a product with one that includes the weights of the norm
before it and an adapter takes as long as one without. Every version has its own from its first
decode step on, so that a sample's digits do not depend on when it is requested. Beyond a budget the
least recently used are dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.model.block_configs import QKV
from tinkex.engine.model.blocks.dense_mlp import DenseMlp
from tinkex.engine.model.decoder import Weights
from tinkex.engine.model.slots import UNEMBED, UNEMBED_LAYER
from tinkex.engine.sampling.adapters import Version

MAX_BYTES = 64 << 20
"""Bytes for all versions together."""

Key: TypeAlias = tuple[int, str]
"""Layer and slot."""

Matrices: TypeAlias = dict[Key, NDArray[np.float32]]
"""[in, out]."""


class MergedMatrices:
    """The merged matrices of one model's versions."""

    def __init__(self, weights: Weights) -> None:
        self._norms = _norms(weights)
        self._plain: Matrices = {
            key: np.ascontiguousarray(weight.numpy().T)
            for key, weight, _ in weights.products()
            if isinstance(weight, Tensor)
        }
        self._most = MAX_BYTES // sum(matrix.nbytes for matrix in self._plain.values())
        self._found: OrderedDict[tuple[int, int], Matrices] = OrderedDict()

    def of(self, versions: Sequence[Version]) -> list[Matrices] | None:
        """The matrices of each of these versions; None if they are too many to be kept at once."""
        if len(versions) > self._most:
            return None
        return [self._of(version) for version in versions]

    def _of(self, version: Version) -> Matrices:
        found = self._found.get(version.identity)
        if found is None:
            found = self._found[version.identity] = self._merged(version)
        self._found.move_to_end(version.identity)
        while len(self._found) > self._most:
            self._found.popitem(last=False)
        return found

    def _merged(self, version: Version) -> Matrices:
        assert version.products is not None
        merged = dict(self._plain)
        for key, parts in version.products.items():
            merged[key] = merged[key].copy()
            for part in parts:
                added = part.a.numpy() @ part.b.numpy()
                merged[key][:, part.columns] += added * np.float32(part.scaling)
        for key, norm in self._norms.items():
            merged[key] = merged[key] * (norm * np.float32(len(norm) ** 0.5))[:, None]
        return merged


def _norms(weights: Weights) -> Matrices:
    """What norms multiply by, by the matrix that takes what they made."""
    found: Matrices = {(UNEMBED_LAYER, UNEMBED): weights.final_norm.numpy()}
    for index, layer in enumerate(weights.layers):
        assert layer.input_norm is not None
        assert layer.post_norm is not None
        assert isinstance(layer.mlp, DenseMlp)
        found[index, QKV] = layer.input_norm.numpy()
        found[index, layer.mlp.config.gate_up] = layer.post_norm.numpy()
    return found
