"""One layer over tokens: attention, computed by a function that is passed in, then the MLP. Arrays
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
from torch import Tensor

from tinkex.engine.model.block_configs import OUT, QKV
from tinkex.engine.model.blocks.attention import Attention
from tinkex.engine.model.blocks.dense_mlp import DenseMlp
from tinkex.engine.model.decoder import Layer
from tinkex.engine.sampling.cache.kept_rows import Floats
from tinkex.engine.sampling.cpu_decode.matrices import Key, Matrices


class Mix(Protocol):
    """Attention of a step's tokens: keeps their keys and values [rows, 2, kv heads, head size] and
    gives what their queries [rows, heads, head size] find, in the same shape or a flatter one."""

    def __call__(self, layer: int, q: Floats, pairs: Floats) -> Floats: ...


class Product:
    """x @ matrix, with its own matrix for each span of rows."""

    def __init__(self, matrices: Sequence[Matrices], stops: Sequence[int]) -> None:
        self._matrices = matrices
        self._parts = [slice(*bounds) for bounds in pairwise([0, *stops])]

    def __call__(self, x: Floats, key: Key, bias: Floats | None = None) -> Floats:
        if len(self._matrices) == 1:
            y: Floats = np.matmul(x, self._matrices[0][key])
        else:
            y = np.empty((len(x), self._matrices[0][key].shape[1]), np.float32)
            for part, matrices in zip(self._parts, self._matrices, strict=True):
                np.matmul(x[part], matrices[key], out=y[part])
        if bias is not None:
            y += bias
        return y


class PlainLayer:
    """A layer of the kind that `decode.is_plain` describes. The weights of its norms are in the
    matrices."""

    def __init__(self, index: int, layer: Layer, eps: float) -> None:
        mixer, mlp = layer.mixer, layer.mlp
        assert isinstance(mixer, Attention)
        assert isinstance(mlp, DenseMlp)
        self._config, self._eps = mixer.config, eps
        root = mixer.config.head_dim**0.5
        self._q_norm, self._k_norm = _array(mixer.q_norm, root), _array(mixer.k_norm, root)
        self._qkv_bias, self._o_bias = _array(mixer.qkv_bias), _array(mixer.o_bias)
        self._gate_up_bias, self._down_bias = _array(mlp.gate_up_bias), _array(mlp.down_bias)
        self._qkv, self._out = (index, QKV), (index, OUT)
        self._gate_up, self._down = (index, mlp.config.gate_up), (index, mlp.config.down)

    def add_to(self, x: Floats, product: Product, turn: tuple[Floats, Floats], mix: Mix) -> None:
        """What the layer adds to the stream [rows, hidden]. `turn` has the cosines and sines of the
        rows' positions."""
        qkv = product(normed(x, self._eps), self._qkv, self._qkv_bias)
        mixed = mix(self._qkv[0], *self._heads(qkv, turn))
        x += product(mixed.reshape(len(x), -1), self._out, self._o_bias)
        gate_up = product(normed(x, self._eps), self._gate_up, self._gate_up_bias)
        x += product(swiglu(gate_up), self._down, self._down_bias)

    def _heads(self, qkv: Floats, turn: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """The rows' queries, and their keys and values."""
        config, count = self._config, len(qkv)
        heads = qkv.reshape(count, -1, config.head_dim)
        q, pairs = heads[:, : config.heads], heads[:, config.heads :]
        if self._q_norm is not None and self._k_norm is not None:
            q[:] = normed(q, config.norm_eps) * self._q_norm
            k = pairs[:, : config.kv_heads]
            k[:] = normed(k, config.norm_eps) * self._k_norm
        rotate(heads[:, : config.heads + config.kv_heads], *turn)
        return q, pairs.reshape(count, 2, config.kv_heads, config.head_dim)


def _array(tensor: Tensor | None, scale: float = 1.0) -> Floats | None:
    return None if tensor is None else tensor.numpy() * np.float32(scale)


def attend(queries: Floats, keys: Floats, values: Floats, mask: Floats | None) -> Floats:
    """Queries [..., few, size] over keys and values [..., tokens, size]."""
    scores: Floats = np.matmul(queries, keys.swapaxes(-1, -2))
    scores *= np.float32(queries.shape[-1] ** -0.5)
    if mask is not None:
        scores += mask
    scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed: Floats = np.matmul(scores, values)
    mixed /= np.add.reduce(scores, axis=-1, keepdims=True)
    return mixed


def normed(x: Floats, eps: float) -> Floats:
    """x / |x| over the last dimension; the factor √size is left to the next matrix."""
    scale: Floats = np.add.reduce(x * x, axis=-1, keepdims=True)
    scale += np.float32(eps * x.shape[-1])
    np.sqrt(scale, out=scale)
    return x / scale


def rotate(x: Floats, cos: Floats, sin: Floats) -> None:
    """Turn [rows, heads, size] in place, by angles as `Rope` makes them."""
    half = x.shape[-1] // 2
    across = np.empty(x.shape, np.float32)
    np.multiply(x[..., half:], sin[..., :half], out=across[..., :half])
    np.multiply(x[..., :half], sin[..., half:], out=across[..., half:])
    x *= cos
    x += across


def swiglu(gate_up: Floats) -> Floats:
    """silu(first half) · second half."""
    half = gate_up.shape[1] // 2
    gate, up = gate_up[:, :half], gate_up[:, half:]
    found: Floats = np.negative(gate)
    np.exp(found, out=found)
    found += np.float32(1)
    np.divide(gate, found, out=found)
    found *= up
    return found
