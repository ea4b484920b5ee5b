"""Adapters have as many parameters as the hosted service publishes for the same base model."""

from __future__ import annotations

from typing import Any

import pytest

from tinkex.engine.adapters import AdapterLayout
from tinkex.engine.messages import LoraSpec
from tinkex.engine.model.families import parse_config

QWEN3_30B_A3B: dict[str, Any] = {
    "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "max_position_embeddings": 40960,
    "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip


def count(config: dict[str, Any], **parts: bool) -> int:
    off = {"train_attn": False, "train_mlp": False, "train_unembed": False}
    return AdapterLayout(parse_config(config), LoraSpec(1, **(off | parts))).size


@pytest.mark.parametrize(
    ("config", "part", "published"), [(QWEN3_30B_A3B, "train_mlp", 14_450_688)]
)
def test_parameters_per_rank_are_the_published_ones(
    config: dict[str, Any], part: str, published: int
) -> None:
    assert count(config, **{part: True}) == published
    assert AdapterLayout(parse_config(config), LoraSpec(8)).size == 8 * count(
        config, train_attn=True, train_mlp=True, train_unembed=True
    )
