"""Tensor and expert parallelism: the share of a model that one of several ranks holds.

Heads, the inner width of MLPs and of every expert are divided; a block's first matrix is cut by
rows and its last by columns, so that what the ranks make of a token sums to what one device would.
Or whole experts are dealt out, some to each rank: what a token gets from them is a sum anyway.
Embeddings, norms and routers are whole on every rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tinkex.engine.model.block_configs import ExpertsConfig
from tinkex.engine.model.config import Shard
from tinkex.engine.model.tensors import FolderTensors

_EXPERTS = ".experts."
_DELTA_CHANNELS = (".in_proj_qkv.weight", ".conv1d.weight")


class ShardTensors(FolderTensors):
    """Reads of every tensor this rank's share: it is cut along the axis that is stored longer than
    it is asked for. A bias that is not cut is added to a sum, and so is the first rank's alone."""

    def __init__(
        self, folder: Path, device: torch.device, dtype: torch.dtype, shard: Shard
    ) -> None:
        super().__init__(folder, device, dtype)
        self._shard = shard
        self._were_cut: set[str] = set()

    def experts(
        self, name: str, fused: str, parts: Sequence[str], own: range, rows: int, columns: int
    ) -> Tensor:
        found = super().experts(name, fused, parts, own, rows, columns)
        whole = next(iter(self._shard.whole.mixtures.values()))
        for expert, part in itertools.product(whole.own, parts):
            self._unread.discard(f"{name}.experts.{expert}.{part}.weight")  # another rank's
        return found

    def biases(self, modules: Sequence[str], sizes: Sequence[int]) -> Tensor:
        found = super().biases(modules, sizes)
        return self._once(found, [f"{module}.bias" for module in modules])

    def placed(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._once(super().placed(name, shape), [name])

    def _once(self, bias: Tensor, names: Sequence[str]) -> Tensor:
        whole = self._were_cut.isdisjoint(names)
        return torch.zeros_like(bias) if whole and self._shard.rank else bias

    def _cut(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        rank, size = self._shard.rank, self._shard.size
        if tensor.ndim != len(shape):
            return tensor
        for axis, (stored, asked) in enumerate(zip(tensor.shape, shape, strict=True)):
            if stored == asked * size:
                self._were_cut.add(name)
                by_expert = axis == 0 and _EXPERTS in name
                lengths = [stored] if by_expert else self._stacked_in(name, stored)
                parts = tensor.split_with_sizes(lengths, dim=axis)
                return torch.cat([part.chunk(size, dim=axis)[rank] for part in parts], dim=axis)
        return tensor

    def _stacked_in(self, name: str, length: int) -> list[int]:
        """The lengths of what a tensor holds one below the other, each with a share of its own."""
        if name.endswith(_DELTA_CHANNELS):
            delta = next(iter(self._shard.whole.recurrent.values()))
            return [delta.key_size, delta.key_size, delta.value_size]
        if ".self_attn.qkv_proj." in name:
            return list(self._shard.whole.attention.qkv_sizes)
        mixtures = (layer.mlp for layer in self._shard.whole.layers)
        alternate = any(isinstance(mlp, ExpertsConfig) and mlp.biased for mlp in mixtures)
        if (
            name.endswith(".experts.gate_up_proj") and not alternate
        ) or ".mlp.gate_up_proj." in name:
            return [length // 2, length // 2]
        return [length]
