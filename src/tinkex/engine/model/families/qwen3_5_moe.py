"""Qwen3.5-MoE and 3.6-MoE: the hybrid layers of Qwen3.5 with a mixture and a shared expert."""

from __future__ import annotations

from dataclasses import replace

from tinkex.engine.model.block_configs import DenseMlpConfig, ExpertsConfig
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.families import qwen3_5
from tinkex.engine.model.families.keys import Keys


def parse(keys: Keys) -> ModelConfig:
    text = qwen3_5.text_keys(keys)
    # Losses that balance experts belong to pretraining; nothing here adds them.
    text.ignore("router_aux_loss_coef", "output_router_logits", "norm_topk_prob")
    text.ignore("intermediate_size")  # of dense layers, of which there are none
    count, active = text.experts("num_experts", "num_local_experts")
    experts = ExpertsConfig(
        experts=count,
        active=active,
        inner=text.size("moe_intermediate_size"),
        renormalise=True,
        shared=DenseMlpConfig(
            text.size("shared_expert_intermediate_size"), path="mlp.shared_expert", prefix="shared_"
        ),
    )
    layers = [LayerConfig(mixer, experts) for mixer in qwen3_5.mixers(text)]
    return text.model(layers, tied=keys.flag("tie_word_embeddings"), one_plus_norms=True)


FAMILY = replace(qwen3_5.FAMILY, parse=parse, flat_in_vllm=True)
