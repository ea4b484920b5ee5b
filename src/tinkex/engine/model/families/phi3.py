"""Phi-3 and Phi-4: Llama whose queries, keys and values lie in one tensor, and gate and up too.

Those with longrope are refused by its name: their angles change as a sequence grows.
"""

from __future__ import annotations

from tinkex.engine.model.block_configs import AttentionConfig, DenseMlpConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys


def parse(keys: Keys) -> ModelConfig:
    heads, layers = keys.size("num_attention_heads"), keys.size("num_hidden_layers")
    head_dim = keys.size("hidden_size") // heads
    for chance in ("resid_pdrop", "embd_pdrop"):
        keys.only(chance, 0.0)
    keys.only("attention_bias", False)
    keys.ignore("original_max_position_embeddings", "auto_map", "embd_layer")
    attention = AttentionConfig(
        heads=heads,
        kv_heads=keys.size("num_key_value_heads", heads),
        head_dim=head_dim,
        norm_eps=keys.norm_eps,
        rope=keys.rope(head_dim, 10_000.0, default_part=1.0),
        window=keys.window(None),
    )
    mlp = DenseMlpConfig(keys.size("intermediate_size"))
    return keys.model([LayerConfig(attention, mlp)] * layers, tied=False)


FAMILY = Family(parse, fused=True, norm_eps=1e-5)
