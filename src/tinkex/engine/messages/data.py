"""Training data as engines take it: tensors, sequences, adapters' settings, traced losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32] | NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Csr:
    """A 2-D tensor whose unlisted cells are zero. Indices are int64."""

    values: NDArray[np.float32] | NDArray[np.int64]
    crow: NDArray[np.int64]
    col: NDArray[np.int64]
    shape: tuple[int, int]


Tensor: TypeAlias = NDArray[np.float32] | NDArray[np.int64] | Csr

Routes: TypeAlias = NDArray[np.uint8] | NDArray[np.int16]
"""The experts that tokens went to: [tokens, layers that are mixtures, experts per token]."""


@dataclass(frozen=True, slots=True)
class Datum:
    """One training sequence: the model's input ids and the loss's named inputs."""

    tokens: IntArray
    inputs: Mapping[str, Tensor]
    routes: Routes | None = None
    """The experts that a sampler sent its first tokens to, to be used again."""


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Which adapters a run has: their rank, and the modules they are on."""

    rank: int
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True


@dataclass(frozen=True, slots=True)
class CustomLoss:
    """A traced loss. `inputs` are (name, rank), `logprobs` first; `nodes` is the protocol's list,
    to be checked against the engine's allow-list. `owner` and `digest` tell it from others: losses
    of one owner are evaluated only a few at a time."""

    owner: str
    digest: bytes
    inputs: tuple[tuple[str, int], ...]
    nodes: tuple[Mapping[str, object], ...] = field(repr=False)
