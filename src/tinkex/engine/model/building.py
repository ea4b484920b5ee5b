"""Builds blocks from tensors under the names that most families give their parts."""

from __future__ import annotations

import torch
from torch import Tensor

from tinkex.engine.model.block_configs import (
    AttentionConfig,
    DenseMlpConfig,
    ExpertsConfig,
    GatedDeltaConfig,
)
from tinkex.engine.model.blocks.attention import Attention
from tinkex.engine.model.blocks.block import Block
from tinkex.engine.model.blocks.dense_mlp import DenseMlp
from tinkex.engine.model.blocks.experts import Experts
from tinkex.engine.model.blocks.gated_delta import GatedDelta
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Layer
from tinkex.engine.model.families import family_of
from tinkex.engine.model.matrices.packed_experts import gate_first
from tinkex.engine.model.tensors import Tensors


def read_layer(tensors: Tensors, config: ModelConfig, index: int, name: str) -> Layer:
    names, hidden = family_of(config.family).norms, config.hidden_size

    def norm(which: str | None) -> Tensor | None:
        if which is None:
            return None
        return tensors.norm(f"{name}.{which}_layernorm", hidden, config.one_plus_norms)

    return Layer(
        input_norm=norm(names.mixer_in),
        mixer=read_mixer(tensors, config, index, name),
        post_norm=norm(names.mlp_in),
        mlp=read_mlp(tensors, config, index, f"{name}.mlp"),
        mixer_norm=norm(names.mixer_out),
        mlp_norm=norm(names.mlp_out),
    )


def read_mixer(tensors: Tensors, config: ModelConfig, index: int, name: str) -> Block:
    mixer = config.layers[index].mixer
    if isinstance(mixer, GatedDeltaConfig):
        return read_gated_delta(tensors, mixer, f"{name}.linear_attn", config.hidden_size)
    fused = family_of(config.family).fused
    return read_attention(
        tensors, mixer, f"{name}.self_attn", config.hidden_size, config.one_plus_norms, fused
    )


def read_gated_delta(
    tensors: Tensors, config: GatedDeltaConfig, name: str, hidden: int
) -> GatedDelta:
    channels, heads, width = config.channels, config.value_heads, config.conv_width
    into = [f"{name}.in_proj_qkv", f"{name}.in_proj_z"]
    return GatedDelta(
        config,
        qkvz=tensors.stacked(into, [channels, config.value_size], hidden),
        ba=tensors.stacked([f"{name}.in_proj_b", f"{name}.in_proj_a"], [heads, heads], hidden),
        conv=tensors.exact(f"{name}.conv1d.weight", (channels, 1, width))[:, 0],
        decay_log=tensors.exact(f"{name}.A_log", (heads,)),
        decay_bias=tensors.exact(f"{name}.dt_bias", (heads,)),
        norm=tensors.norm(f"{name}.norm", config.value_dim),
        out=tensors.matrix(f"{name}.out_proj", hidden, config.value_size),
    )


def read_attention(
    tensors: Tensors, config: AttentionConfig, name: str, hidden: int, one_plus: bool, fused: bool
) -> Attention:
    qkv, sizes = [f"{name}.{part}_proj" for part in "qkv"], list(config.qkv_sizes)
    if fused:
        qkv, sizes = [f"{name}.qkv_proj"], [sum(sizes)]
    norms, o = config.qk_norm, f"{name}.o_proj"
    heads = (config.q_size, config.kv_size) if config.wide_norms else (config.head_dim,) * 2
    return Attention(
        config,
        qkv=tensors.stacked(qkv, sizes, hidden),
        o=tensors.matrix(o, hidden, config.q_size),
        qkv_bias=tensors.biases(qkv, sizes) if config.qkv_bias else None,
        o_bias=tensors.biases([o], [hidden]) if config.o_bias else None,
        q_norm=tensors.norm(f"{name}.q_norm", heads[0], one_plus) if norms else None,
        k_norm=tensors.norm(f"{name}.k_norm", heads[1], one_plus) if norms else None,
        sinks=tensors.exact(f"{name}.sinks", (config.heads,)) if config.sinks else None,
    )


def read_mlp(tensors: Tensors, config: ModelConfig, index: int, name: str) -> Block:
    mlp, hidden = config.layers[index].mlp, config.hidden_size
    if isinstance(mlp, ExpertsConfig):
        return read_experts(tensors, mlp, name, hidden)
    return read_dense_mlp(tensors, mlp, name, hidden, family_of(config.family).fused)


def read_dense_mlp(
    tensors: Tensors, config: DenseMlpConfig, name: str, hidden: int, fused: bool = False
) -> DenseMlp:
    gate_up, sizes = [f"{name}.gate_proj", f"{name}.up_proj"], [config.inner, config.inner]
    if fused:
        gate_up, sizes = [f"{name}.gate_up_proj"], [2 * config.inner]
    down = f"{name}.down_proj"
    return DenseMlp(
        config,
        gate_up=tensors.stacked(gate_up, sizes, hidden),
        down=tensors.matrix(down, hidden, config.inner),
        gate_up_bias=tensors.biases(gate_up, sizes) if config.bias else None,
        down_bias=tensors.biases([down], [hidden]) if config.bias else None,
    )


def read_experts(tensors: Tensors, config: ExpertsConfig, name: str, hidden: int) -> Experts:
    if config.biased:
        return read_packed_experts(tensors, config, name, hidden)
    own, inner, shared = config.own, config.inner, config.shared
    return Experts(
        config,
        router=tensors.exact(f"{name}.gate.weight", (config.routed, hidden)),
        gate_up=tensors.experts(name, "gate_up_proj", ("gate_proj", "up_proj"), own, inner, hidden),
        down=tensors.experts(name, "down_proj", ("down_proj",), own, hidden, inner),
        shared=None
        if shared is None
        else read_dense_mlp(tensors, shared, f"{name}.shared_expert", hidden),
        shared_gate=None
        if shared is None
        else tensors.matrix(f"{name}.shared_expert_gate", 1, hidden),
    )


def read_packed_experts(tensors: Tensors, config: ExpertsConfig, name: str, hidden: int) -> Experts:
    """Those of gpt-oss, whose rows of gate and up alternate."""
    count, inner = config.experts, config.inner
    up, down = f"{name}.experts.gate_up_proj", f"{name}.experts.down_proj"
    gate_up = tensors.packed_experts(up, count, 2 * inner, hidden)
    bias = tensors.placed(f"{up}_bias", (count, 2 * inner))
    return Experts(
        config,
        router=tensors.exact(f"{name}.router.weight", (config.routed, hidden)),
        gate_up=gate_first(gate_up),
        down=tensors.packed_experts(down, count, hidden, inner),
        router_bias=tensors.exact(f"{name}.router.bias", (config.routed,)),
        gate_up_bias=torch.cat([bias[:, ::2], bias[:, 1::2]], dim=1),
        down_bias=tensors.placed(f"{down}_bias", (count, hidden)),
    )
