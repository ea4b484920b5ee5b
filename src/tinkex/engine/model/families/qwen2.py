"""Qwen2 and 2.5: biases on queries, keys and values; some layers may slide."""

from __future__ import annotations

from dataclasses import replace

from tinkex.engine.model.block_configs import AttentionConfig, DenseMlpConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys

FULL, SLIDING = "full_attention", "sliding_attention"


def parse(keys: Keys) -> ModelConfig:
    heads = keys.size("num_attention_heads")
    head_dim = keys.size("head_dim", keys.size("hidden_size") // heads)
    attention = AttentionConfig(
        heads=heads,
        kv_heads=keys.size("num_key_value_heads"),
        head_dim=head_dim,
        norm_eps=keys.norm_eps,
        rope=keys.rope(head_dim, 10_000.0),
        qkv_bias=True,
    )
    mlp = DenseMlpConfig(keys.size("intermediate_size"))
    mixers = [replace(attention, window=window) for window in windows(keys)]
    return keys.model([LayerConfig(mixer, mlp) for mixer in mixers], tied=False)


def windows(keys: Keys) -> list[int | None]:
    """Each layer's sliding window: the later layers', where the switch is on."""
    layers = keys.size("num_hidden_layers")
    window = keys.window(4096) if keys.flag("use_sliding_window") else None
    if window is None:
        keys.ignore("sliding_window", "max_window_layers", "layer_types")
        return [None] * layers
    first = keys.size("max_window_layers", 28, least=0)
    default = [SLIDING if layer >= first else FULL for layer in range(layers)]
    kinds = keys.layer_kinds(layers, (FULL, SLIDING), default)
    return [window if kind == SLIDING else None for kind in kinds]


FAMILY = Family(parse)
