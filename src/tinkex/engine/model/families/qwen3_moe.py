"""Qwen3-MoE: Qwen3's attention, a mixture of experts in place of the MLP."""

from __future__ import annotations

from dataclasses import replace

from tinkex.engine.model.block_configs import DenseMlpConfig, ExpertsConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys
from tinkex.engine.model.families.qwen3 import attention


def parse(keys: Keys) -> ModelConfig:
    # Losses that balance experts belong to pretraining; nothing here adds them.
    keys.ignore("router_aux_loss_coef", "output_router_logits")
    count, active = keys.experts("num_experts", "num_local_experts")
    experts = ExpertsConfig(
        experts=count,
        active=active,
        inner=keys.size("moe_intermediate_size"),
        renormalise=keys.flag("norm_topk_prob"),
    )
    dense = DenseMlpConfig(keys.size("intermediate_size"))
    head_dim = keys.size("hidden_size") // keys.size("num_attention_heads")
    mixer = replace(attention(keys, head_dim), window=_window(keys))
    apart, step = keys.items("mlp_only_layers"), keys.size("decoder_sparse_step", 1)
    return keys.model(
        [
            LayerConfig(mixer, dense if index in apart or (index + 1) % step else experts)
            for index in range(keys.size("num_hidden_layers"))
        ],
        tied=False,
    )


def _window(keys: Keys) -> int | None:
    """Of all layers: unlike in Qwen3, none of them is left out."""
    keys.ignore("max_window_layers", "layer_types")
    window = keys.window(4096)
    return window if keys.flag("use_sliding_window") else None


FAMILY = Family(parse, lone_mlps_in_peft=False)
