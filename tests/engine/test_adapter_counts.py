"""Adapters have as many parameters as the hosted service publishes for the same base model."""

from __future__ import annotations

from typing import Any

import pytest

from tinkex.engine.adapters.layout import AdapterLayout
from tinkex.engine.messages import LoraSpec
from tinkex.engine.model.families import parse_config

QWEN3_30B_A3B: dict[str, Any] = {
    "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "max_position_embeddings": 40960,
    "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip

QWEN3_5_35B_A3B: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "max_position_embeddings": 262144,
    },
    "vision_config": {"depth": 27},
}  # fmt: skip
GPT_OSS_20B: dict[str, Any] = {
    "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
    "max_position_embeddings": 131072, "swiglu_limit": 7.0, "rms_norm_eps": 1e-5,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "truncate": False, "original_max_position_embeddings": 4096},
    "rope_theta": 150000, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip


def count(config: dict[str, Any], **parts: bool) -> int:
    off = {"train_attn": False, "train_mlp": False, "train_unembed": False}
    return AdapterLayout(parse_config(config), LoraSpec(1, **(off | parts))).size


@pytest.mark.parametrize(
    ("config", "part", "published"),
    [
        (QWEN3_30B_A3B, "train_mlp", 14_450_688),
        (QWEN3_5_35B_A3B, "train_mlp", 16_281_600),
        (QWEN3_5_35B_A3B, "train_attn", 1_013_760),
        (GPT_OSS_20B, "train_mlp", 6_842_880),
        (GPT_OSS_20B, "train_attn", 497_664),
    ],
)
def test_parameters_per_rank_are_the_published_ones(
    config: dict[str, Any], part: str, published: int
) -> None:
    assert count(config, **{part: True}) == published
    assert AdapterLayout(parse_config(config), LoraSpec(8)).size == 8 * count(
        config, train_attn=True, train_mlp=True, train_unembed=True
    )
