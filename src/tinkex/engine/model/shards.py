"""Tensor parallelism: the share of a model that one of several ranks holds.

Heads, the inner width of MLPs and of every expert are divided; a block's first matrix is cut by
rows and its last by columns, so that what the ranks make of a token sums to what one device would.
Embeddings, norms and routers are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tinkex.engine.collectives import Ranks
from tinkex.engine.errors import ModelError
from tinkex.engine.model.block_configs import (
    AttentionConfig,
    DenseMlpConfig,
    ExpertsConfig,
    GatedDeltaConfig,
)
from tinkex.engine.model.config import LayerConfig, ModelConfig, Shard
from tinkex.engine.model.tensors import FolderTensors

_DELTA_CHANNELS = (".in_proj_qkv.weight", ".conv1d.weight")


def share_of(config: ModelConfig, ranks: Ranks) -> ModelConfig:
    """The configuration of one rank's share; `ModelError` names what cannot be divided."""
    if ranks.size == 1:
        return config
    layers = tuple(
        LayerConfig(_mixer(layer.mixer, ranks.size), _mlp(layer.mlp, ranks.size))
        for layer in config.layers
    )
    return replace(config, layers=layers, shard=Shard(ranks.rank, ranks.size, config))


def _mixer(
    mixer: AttentionConfig | GatedDeltaConfig, size: int
) -> AttentionConfig | GatedDeltaConfig:
    if isinstance(mixer, GatedDeltaConfig):
        return replace(
            mixer,
            key_heads=_part(mixer.key_heads, size, "linear_num_key_heads"),
            value_heads=_part(mixer.value_heads, size, "linear_num_value_heads"),
        )
    if mixer.wide_norms:
        raise ModelError(
            "ranks: this family norms queries and keys over all heads at once, which are on one "
            "device; serve it with ranks=1"
        )
    return replace(
        mixer,
        heads=_part(mixer.heads, size, "num_attention_heads"),
        kv_heads=_part(mixer.kv_heads, size, "num_key_value_heads"),
    )


def _mlp(mlp: DenseMlpConfig | ExpertsConfig, size: int) -> DenseMlpConfig | ExpertsConfig:
    if isinstance(mlp, DenseMlpConfig):
        return replace(mlp, inner=_part(mlp.inner, size, "intermediate_size"))
    shared = None
    if mlp.shared is not None:
        inner = _part(mlp.shared.inner, size, "shared_expert_intermediate_size")
        shared = replace(mlp.shared, inner=inner)
    inner = _part(mlp.inner, size, "moe_intermediate_size")
    return replace(mlp, inner=inner, shared=shared)


def _part(whole: int, size: int, name: str) -> int:
    if whole % size:
        raise ModelError(
            f"ranks: {name} is {whole}, which {size} ranks cannot divide; choose a number of "
            f"ranks that divides it"
        )
    return whole // size


class ShardTensors(FolderTensors):
    """Reads of every tensor this rank's share: it is cut along the axis that is stored longer than
    it is asked for. A bias that is not cut is added to a sum, and so is the first rank's alone."""

    def __init__(
        self, folder: Path, device: torch.device, dtype: torch.dtype, shard: Shard
    ) -> None:
        super().__init__(folder, device, dtype)
        self._shard = shard
        self._were_cut: set[str] = set()

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
                parts = tensor.split_with_sizes(self._stacked_in(name, stored), dim=axis)
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
