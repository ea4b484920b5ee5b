"""Gemma 3, text only: norms on both sides of blocks, two kinds of rotation, GELU."""

from __future__ import annotations

from dataclasses import replace

from tinkex.engine.model.block_configs import AttentionConfig, DenseMlpConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family, Norms
from tinkex.engine.model.families.keys import Keys
from tinkex.engine.model.families.qwen2 import FULL, SLIDING


def parse(keys: Keys) -> ModelConfig:
    keys.only("hidden_activation", "gelu_pytorch_tanh")
    keys.ignore("hidden_act")  # older files name the same function twice
    layers, every = keys.size("num_hidden_layers"), keys.size("sliding_window_pattern", 6)
    keys.ignore("_sliding_window_pattern")
    default = [SLIDING if (layer + 1) % every else FULL for layer in range(layers)]
    kinds = keys.layer_kinds(layers, (FULL, SLIDING), default)
    attention, window = _attention(keys), keys.window(4096)
    head_dim, theta = attention.head_dim, keys.get("rope_theta", 1_000_000.0)
    local = keys.get("rope_local_base_freq", 10_000.0)
    ropes = {
        FULL: keys.rope_of(FULL, head_dim, theta, scaled=True),
        SLIDING: keys.rope_of(SLIDING, head_dim, local, scaled=False),
    }
    mlp = DenseMlpConfig(keys.size("intermediate_size"), gelu=True)
    mixers = [
        replace(attention, rope=ropes[kind], window=window if kind == SLIDING else None)
        for kind in kinds
    ]
    config = keys.model(
        [LayerConfig(mixer, mlp) for mixer in mixers], tied=True, one_plus_norms=True,
        activation=None,
    )  # fmt: skip
    return replace(config, embed_scale=config.hidden_size**0.5)


def _attention(keys: Keys) -> AttentionConfig:
    bias = keys.flag("attention_bias")
    return AttentionConfig(
        heads=keys.size("num_attention_heads"),
        kv_heads=keys.size("num_key_value_heads"),
        head_dim=keys.size("head_dim", 256),
        norm_eps=keys.norm_eps,
        rope=None,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        scale=keys.number("query_pre_attn_scalar", 256) ** -0.5,
    )


FAMILY = Family(
    parse,
    norms=Norms(
        mixer_in="input",
        mixer_out="post_attention",
        mlp_in="pre_feedforward",
        mlp_out="post_feedforward",
    ),
)
