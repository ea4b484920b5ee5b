"""Mistral: every layer attends within a sliding window, where one is set."""

from __future__ import annotations

from tinkex.engine.model.block_configs import AttentionConfig, DenseMlpConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys


def parse(keys: Keys) -> ModelConfig:
    heads, layers = keys.size("num_attention_heads"), keys.size("num_hidden_layers")
    head_dim = keys.size("head_dim", keys.size("hidden_size") // heads)
    keys.ignore("layer_types")
    attention = AttentionConfig(
        heads=heads,
        kv_heads=keys.size("num_key_value_heads"),
        head_dim=head_dim,
        norm_eps=keys.norm_eps,
        rope=keys.rope(head_dim, 10_000.0),
        window=keys.window(4096),
    )
    mlp = DenseMlpConfig(keys.size("intermediate_size"))
    return keys.model([LayerConfig(attention, mlp)] * layers, tied=False)


FAMILY = Family(parse)
