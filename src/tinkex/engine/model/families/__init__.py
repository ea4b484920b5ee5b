"""Families of models: each a module that turns a `config.json` into blocks and names tensors.

A configuration key that a family does not read, and that is neither harmless nor switched off, is
refused by name: a model is never computed with a setting ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinkex.engine.errors import ModelError
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.families import (
    gemma3,
    gpt_oss,
    granite,
    llama,
    mistral,
    olmo3,
    phi3,
    qwen2,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    smollm3,
)
from tinkex.engine.model.families.family import Family
from tinkex.engine.model.families.keys import Keys

FAMILIES: Mapping[str, Family] = {
    "llama": llama.FAMILY,
    "mistral": mistral.FAMILY,
    "ministral": mistral.FAMILY,
    "qwen2": qwen2.FAMILY,
    "qwen3": qwen3.FAMILY,
    "qwen3_moe": qwen3_moe.FAMILY,
    "qwen3_5": qwen3_5.FAMILY,
    "qwen3_5_text": qwen3_5.FAMILY,
    "qwen3_5_moe": qwen3_5_moe.FAMILY,
    "qwen3_5_moe_text": qwen3_5_moe.FAMILY,
    "gpt_oss": gpt_oss.FAMILY,
    "gemma3_text": gemma3.FAMILY,
    "granite": granite.FAMILY,
    "olmo3": olmo3.FAMILY,
    "smollm3": smollm3.FAMILY,
    "phi3": phi3.FAMILY,
}
"""By the `model_type` of a `config.json`."""


def family_of(model_type: object) -> Family:
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ModelError(
            f"config.json: model_type {model_type!r} is not supported; "
            f"supported: {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """The configuration in a parsed `config.json`; `ModelError` names what is not supported."""
    family = family_of(raw.get("model_type"))
    keys = Keys(raw, family.norm_eps)
    config = family.parse(keys)
    keys.refuse_unread()
    return config
