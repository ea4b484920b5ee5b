"""Loads a Hugging Face model folder into a `Decoder`: its family's blocks, their tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import torch

from tinkex.engine.collectives import Ranks
from tinkex.engine.errors import ModelError
from tinkex.engine.model.building import read_layer
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Decoder, Weights
from tinkex.engine.model.families import family_of
from tinkex.engine.model.headers import has_mxfp4, read_config
from tinkex.engine.model.matrices.float8 import Float8
from tinkex.engine.model.matrices.steady import Steady, check_steady
from tinkex.engine.model.shards import ShardTensors
from tinkex.engine.model.sizes import sizes_of
from tinkex.engine.model.tensors import FolderTensors, Tensors

Base: TypeAlias = Float8 | Steady
"""Forms of a model's matrices other than plain tensors."""


def load_decoder(
    folder: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None,
    ranks: Ranks | None = None, base: Base | None = None, *, whole_experts: bool = False,
    packed: bool | None = False, room: int | None = None,
) -> Decoder:  # fmt: skip
    """The model in `folder` on `device`, or the share of it that one of several ranks holds: of
    every expert a part, or `whole_experts`. `dtype` defaults to float32 on the CPU, else bfloat16;
    `base` is the form of its matrices. Experts in MXFP4 stay `packed`, or are widened; None leaves
    that to whether the widened model is larger than `room`."""
    path, place = Path(folder), torch.device(device)
    config = read_config(path)
    wanted = dtype or (torch.float32 if place.type == "cpu" else torch.bfloat16)
    tensors = FolderTensors(path, place, wanted)
    if ranks is not None:
        config = config.share(ranks.rank, ranks.size, whole_experts=whole_experts)
    if config.shard is not None:
        tensors = ShardTensors(path, place, wanted, config.shard)
    wide = sizes_of(config).parameters * wanted.itemsize
    tensors.keeps_packed = (room is not None and wide > room) if packed is None else packed
    if packed and not has_mxfp4(path):
        raise ModelError(
            "packed_experts: 1 needs experts in MXFP4, and this model has none; leave it out"
        )
    if isinstance(base, Steady):
        check_steady(config)
    weights = read_weights(config, tensors, base)
    if config.tied:
        tensors.refuse_untied(f"{_prefix(config, tensors)}.embed_tokens.weight", "lm_head.weight")
    # Rotations are computed, whatever a folder says; a tied unembedding is the embedding.
    harmless = (".rotary_emb.inv_freq",) + (("lm_head.weight",) if config.tied else ())
    tensors.refuse_leftovers(config.family, harmless, family_of(config.family).unused)
    tensors.refuse_unfinite()
    return Decoder(config, weights)


def read_weights(config: ModelConfig, tensors: Tensors, base: Base | None = None) -> Weights:
    hidden, name = config.hidden_size, _prefix(config, tensors)
    embed = tensors.matrix(f"{name}.embed_tokens", config.vocab_size, hidden)
    read = (
        read_layer(tensors, config, index, f"{name}.layers.{index}")
        for index in range(len(config.layers))
    )
    # One by one: of a model that fits only in float8 no more than a layer is ever there wide.
    layers = tuple(layer if base is None else base.layer(layer) for layer in read)
    final_norm = tensors.norm(f"{name}.norm", hidden, config.one_plus_norms)
    if config.logit_divisor != 1.0:  # the unembedding is linear: it may as well divide its input
        final_norm = final_norm.float() / config.logit_divisor
    unembed = embed if config.tied else tensors.matrix("lm_head", config.vocab_size, hidden)
    return Weights(embed, layers, final_norm, unembed if base is None else base.head(unembed))


def _prefix(config: ModelConfig, tensors: Tensors) -> str:
    """Under which the decoder's tensors lie."""
    prefixes = family_of(config.family).prefixes
    there = [name for name in prefixes if tensors.has(f"{name}.embed_tokens.weight")]
    return (there or prefixes)[0]
