"""Qwen3.5, 3.6 and 3.8: three layers of gated delta rule, then one of gated attention.

Published with a vision tower, whose text part is read and whose tower is left out; the text-only
configuration is read as well.
"""

from __future__ import annotations

from tinkex.engine.model.block_configs import AttentionConfig, DenseMlpConfig, GatedDeltaConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys

LINEAR, FULL = "linear_attention", "full_attention"

_VISION = (
    "vision_config", "image_token_id", "video_token_id", "vision_start_token_id",
    "vision_end_token_id",
)  # fmt: skip


def parse(keys: Keys) -> ModelConfig:
    text = text_keys(keys)
    mlp = DenseMlpConfig(text.size("intermediate_size"))
    layers = [LayerConfig(mixer, mlp) for mixer in mixers(text)]
    tied = keys.flag("tie_word_embeddings")
    return text.model(layers, tied=tied, one_plus_norms=True)


def text_keys(keys: Keys) -> Keys:
    """The keys of the text model, whether or not it came with a tower."""
    if not keys.has("text_config"):
        return keys
    keys.ignore(*_VISION)
    return keys.nested("text_config")


def mixers(keys: Keys) -> list[AttentionConfig | GatedDeltaConfig]:
    # Heads of predicted tokens for speculative decoding, and what training adds: not used here.
    keys.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")
    keys.only("attn_output_gate", True)
    layers, every = keys.size("num_hidden_layers"), keys.size("full_attention_interval", 4)
    default = [FULL if (layer + 1) % every == 0 else LINEAR for layer in range(layers)]
    kinds = keys.layer_kinds(layers, (LINEAR, FULL), default)
    full, linear = _attention(keys), _gated_delta(keys)
    return [full if kind == FULL else linear for kind in kinds]


def _attention(keys: Keys) -> AttentionConfig:
    head_dim, bias = keys.size("head_dim", 256), keys.flag("attention_bias")
    return AttentionConfig(
        heads=keys.size("num_attention_heads"),
        kv_heads=keys.size("num_key_value_heads"),
        head_dim=head_dim,
        norm_eps=keys.norm_eps,
        rope=keys.rope(head_dim, 10_000.0, default_part=0.25),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        gated=True,
    )


def _gated_delta(keys: Keys) -> GatedDeltaConfig:
    return GatedDeltaConfig(
        key_heads=keys.size("linear_num_key_heads"),
        value_heads=keys.size("linear_num_value_heads"),
        key_dim=keys.size("linear_key_head_dim"),
        value_dim=keys.size("linear_value_head_dim"),
        conv_width=keys.size("linear_conv_kernel_dim"),
        norm_eps=keys.norm_eps,
    )


_UNUSED = ("model.visual.", "model.language_model.visual.", "mtp.")
"""The tower, as it is published and as transformers 5.5 writes it, and guesses at tokens ahead."""

FAMILY = Family(parse, prefixes=("model", "model.language_model"), unused=_UNUSED)
