"""Qwen3-MoE: Qwen3's attention, a mixture of experts in place of the MLP."""

from __future__ import annotations

from tinkex.engine.model.block_configs import DenseMlpConfig, ExpertsConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys
from tinkex.engine.model.families.qwen3 import mixers


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
    apart, step = keys.items("mlp_only_layers"), keys.size("decoder_sparse_step", 1)
    return keys.model(
        [
            LayerConfig(mixer, dense if index in apart or (index + 1) % step else experts)
            for index, mixer in enumerate(mixers(keys))
        ],
        tied=False,
    )


FAMILY = Family(parse, lone_mlps_in_peft=False)
