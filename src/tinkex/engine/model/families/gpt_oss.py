"""gpt-oss: attention with sinks, every other layer within a window; clamped experts with biases.

Experts are shipped in MXFP4, and widened when loaded or where they are used; a folder whose experts
were widened before is read as well.
"""

from __future__ import annotations

from dataclasses import replace

from tinkex.engine.errors import ModelError
from tinkex.engine.model.block_configs import AttentionConfig, ExpertsConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys
from tinkex.engine.model.families.qwen2 import FULL, SLIDING

_YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
"""How far published models stretch their rotation."""


def parse(keys: Keys) -> ModelConfig:
    # Said twice in published configurations, or of pretraining.
    keys.ignore("experts_per_token", "initial_context_length", "router_aux_loss_coef")
    keys.ignore("output_router_logits")
    _check_quantization(keys)
    count, active = keys.experts("num_local_experts", "num_experts")
    experts = ExpertsConfig(
        experts=count,
        active=active,
        inner=keys.size("intermediate_size"),
        renormalise=True,
        biased=True,
        clamp=keys.number("swiglu_limit", 7.0),
    )
    return keys.model([LayerConfig(mixer, experts) for mixer in _mixers(keys)], tied=False)


def _mixers(keys: Keys) -> list[AttentionConfig]:
    layers, head_dim = keys.size("num_hidden_layers"), keys.size("head_dim", 64)
    bias = keys.flag("attention_bias", True)
    attention = AttentionConfig(
        heads=keys.size("num_attention_heads"),
        kv_heads=keys.size("num_key_value_heads"),
        head_dim=head_dim,
        norm_eps=keys.norm_eps,
        rope=keys.rope(head_dim, 150_000.0, unsaid=_YARN),
        qkv_bias=bias,
        o_bias=bias,
        sinks=True,
        path="attn",
    )
    default = [FULL if layer % 2 else SLIDING for layer in range(layers)]
    kinds = keys.layer_kinds(layers, (FULL, SLIDING), default)
    window = keys.window(128)
    return [replace(attention, window=window if kind == SLIDING else None) for kind in kinds]


def _check_quantization(keys: Keys) -> None:
    quantized = keys.object("quantization_config")
    if quantized and quantized.get("quant_method") != "mxfp4":
        raise ModelError(
            f"config.json: quantization_config asks for {quantized.get('quant_method')!r}; "
            "of gpt-oss only 'mxfp4' is read"
        )


FAMILY = Family(parse, norm_eps=1e-5, experts_are_modules=False, flat_in_vllm=True)
