"""OLMo 3: norms behind the blocks, not before them; queries and keys normed over all heads.

Only layers that see everything have their rotation scaled (YaRN): those with a window never see
farther than the model was first trained for.
"""

from __future__ import annotations

from dataclasses import replace

from tinkex.engine.model.block_configs import AttentionConfig, DenseMlpConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family, Norms
from tinkex.engine.model.families.keys import Keys
from tinkex.engine.model.families.qwen2 import FULL, SLIDING


def parse(keys: Keys) -> ModelConfig:
    heads, layers = keys.size("num_attention_heads"), keys.size("num_hidden_layers")
    head_dim = keys.size("head_dim", keys.size("hidden_size") // heads)
    bias = keys.flag("attention_bias")
    attention = AttentionConfig(
        heads=heads,
        kv_heads=keys.size("num_key_value_heads", heads),
        head_dim=head_dim,
        norm_eps=keys.norm_eps,
        rope=None,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        wide_norms=True,
    )
    default = [FULL if (layer + 1) % 4 == 0 else SLIDING for layer in range(layers)]
    kinds = keys.layer_kinds(layers, (FULL, SLIDING), default)
    window = keys.window(4096)
    once = keys.object("rope_parameters")
    theta = once.get("rope_theta") or keys.get("rope_theta", 10_000.0)
    ropes = {kind: keys.rope_of(kind, head_dim, theta, scaled=kind == FULL) for kind in set(kinds)}
    mixers = [
        replace(attention, rope=ropes[kind], window=window if kind == SLIDING else None)
        for kind in kinds
    ]
    mlp = DenseMlpConfig(keys.size("intermediate_size"))
    return keys.model([LayerConfig(mixer, mlp) for mixer in mixers], tied=False)


FAMILY = Family(
    parse,
    norm_eps=1e-5,
    norms=Norms(mixer_in=None, mlp_in=None, mixer_out="post_attention", mlp_out="post_feedforward"),
)
