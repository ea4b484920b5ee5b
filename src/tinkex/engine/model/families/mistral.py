"""Mistral and Ministral: layers attend within a sliding window, where one is set; all of them, or
those that are listed."""

from __future__ import annotations

from dataclasses import replace

from tinkex.engine.model.block_configs import AttentionConfig, DenseMlpConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys
from tinkex.engine.model.families.qwen2 import FULL, SLIDING


def parse(keys: Keys) -> ModelConfig:
    heads, layers = keys.size("num_attention_heads"), keys.size("num_hidden_layers")
    head_dim = keys.size("head_dim", keys.size("hidden_size") // heads)
    kinds = keys.layer_kinds(layers, (FULL, SLIDING), [SLIDING] * layers)
    window = keys.window(4096)
    attention = AttentionConfig(
        heads=heads,
        kv_heads=keys.size("num_key_value_heads"),
        head_dim=head_dim,
        norm_eps=keys.norm_eps,
        rope=keys.rope(head_dim, 10_000.0),
    )
    mixers = [replace(attention, window=window if kind == SLIDING else None) for kind in kinds]
    mlp = DenseMlpConfig(keys.size("intermediate_size"))
    return keys.model([LayerConfig(mixer, mlp) for mixer in mixers], tied=False)


FAMILY = Family(parse)
