"""Llama, and what is published as it (SmolLM2 among others)."""

from __future__ import annotations

from tinkex.engine.model.block_configs import AttentionConfig, DenseMlpConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys


def parse(keys: Keys, scale: float | None = None) -> ModelConfig:
    """`scale` is that of attention, where it is not the usual one."""
    heads, layers = keys.size("num_attention_heads"), keys.size("num_hidden_layers")
    head_dim = keys.size("head_dim", keys.size("hidden_size") // heads)
    bias = keys.flag("attention_bias")
    keys.ignore("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
    attention = AttentionConfig(
        heads=heads,
        kv_heads=keys.size("num_key_value_heads", heads),
        head_dim=head_dim,
        norm_eps=keys.norm_eps,
        rope=keys.rope(head_dim, 10_000.0),
        qkv_bias=bias,
        o_bias=bias,
        scale=scale,
    )
    mlp = DenseMlpConfig(keys.size("intermediate_size"), bias=keys.flag("mlp_bias"))
    return keys.model([LayerConfig(attention, mlp)] * layers, tied=False)


FAMILY = Family(parse)
