"""Qwen3: queries and keys are normed by head; some layers may slide."""

from __future__ import annotations

from dataclasses import replace

from tinkex.engine.model.block_configs import AttentionConfig, DenseMlpConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys
from tinkex.engine.model.families.qwen2 import windows


def parse(keys: Keys) -> ModelConfig:
    mlp = DenseMlpConfig(keys.size("intermediate_size"))
    mixer = attention(keys, head_dim=128)
    layers = [LayerConfig(replace(mixer, window=window), mlp) for window in windows(keys)]
    return keys.model(layers, tied=False)


def attention(keys: Keys, head_dim: int) -> AttentionConfig:
    """Without a window; `head_dim` is what counts where nothing is said."""
    head_dim, bias = keys.size("head_dim", head_dim), keys.flag("attention_bias")
    return AttentionConfig(
        heads=keys.size("num_attention_heads"),
        kv_heads=keys.size("num_key_value_heads"),
        head_dim=head_dim,
        norm_eps=keys.norm_eps,
        rope=keys.rope(head_dim, 10_000.0),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
    )


FAMILY = Family(parse)
