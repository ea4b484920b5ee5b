"""Granite 3: Llama with four numbers that scale embeddings, scores, what blocks add, and logits."""

from __future__ import annotations

from dataclasses import replace

from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.families import llama
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys


def parse(keys: Keys) -> ModelConfig:
    config = llama.parse(keys, scale=keys.number("attention_multiplier", 1.0))
    return replace(
        config,
        embed_scale=keys.number("embedding_multiplier", 1.0),
        residual_scale=keys.number("residual_multiplier", 1.0),
        logit_divisor=keys.number("logits_scaling", 1.0),
    )


FAMILY = Family(parse)
