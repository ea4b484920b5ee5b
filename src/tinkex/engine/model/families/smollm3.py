"""SmolLM3: every few layers queries and keys are not rotated."""

from __future__ import annotations

from dataclasses import replace

from tinkex.engine.errors import ModelError
from tinkex.engine.model.block_configs import AttentionConfig, DenseMlpConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys
from tinkex.engine.model.families.qwen2 import FULL, SLIDING


def parse(keys: Keys) -> ModelConfig:
    heads, bias = keys.size("num_attention_heads"), keys.flag("attention_bias")
    head_dim = keys.size("head_dim", keys.size("hidden_size") // heads)
    attention = AttentionConfig(
        heads=heads,
        kv_heads=keys.size("num_key_value_heads"),
        head_dim=head_dim,
        norm_eps=keys.norm_eps,
        rope=keys.rope(head_dim, 2_000_000.0),
        qkv_bias=bias,
        o_bias=bias,
    )
    mlp = DenseMlpConfig(keys.size("intermediate_size"), bias=keys.flag("mlp_bias"))
    rotary = _rotary(keys)
    return keys.model(
        [
            LayerConfig(
                replace(attention, window=window, rope=attention.rope if turns else None), mlp
            )
            for window, turns in zip(_windows(keys, rotary), rotary, strict=True)
        ],
        tied=True,
    )


def _rotary(keys: Keys) -> list[bool]:
    """Whether each layer rotates queries and keys."""
    layers, flags = keys.size("num_hidden_layers"), keys.items("no_rope_layers")
    every = keys.size("no_rope_layer_interval", 4)
    if not flags:
        flags = [(layer + 1) % every != 0 for layer in range(layers)]
    if len(flags) != layers:
        raise ModelError(
            f"config.json: no_rope_layers has {len(flags)} entries for {layers} layers"
        )
    return [bool(flag) for flag in flags]


def _windows(keys: Keys, rotary: list[bool]) -> list[int | None]:
    keys.ignore("max_window_layers")  # which layers slide is said by those that do not rotate
    window, on = keys.window(None), keys.flag("use_sliding_window")
    default = [SLIDING if on and not turns else FULL for turns in rotary]
    kinds = keys.layer_kinds(len(rotary), (FULL, SLIDING), default)
    return [window if kind == SLIDING else None for kind in kinds]


FAMILY = Family(parse)
