"""Folders of newer families are computed as they say, or refused with what is wrong."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from support.hf_models import BLOCK_FAMILIES, FAMILIES, SHAPE, make_reference, save_reference
from tinkex.engine.errors import ModelError
from tinkex.engine.model.families import parse_config
from tinkex.engine.model.loading import load_decoder

TEXT: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "max_position_embeddings": 64,
}  # fmt: skip
QWEN3_5 = {"model_type": "qwen3_5", "text_config": TEXT, "vision_config": {"depth": 2}}


def test_a_vision_checkpoints_text_is_the_text_model() -> None:
    published, plain = parse_config(QWEN3_5), parse_config(TEXT | {"model_type": "qwen3_5_text"})
    assert published.layers == plain.layers
    assert [mixer is not None for mixer in published.attends] == [False, False, False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": TEXT | {"attn_soft_cap": 3.0}}, "'attn_soft_cap' is not known"),
        ({"audio_config": {"depth": 1}}, "'audio_config' is not known"),
        ({"text_config": None}, "intermediate_size must be a whole number"),
        ({"text_config": TEXT | {"attn_output_gate": False}}, "attn_output_gate = False"),
        ({"text_config": TEXT | {"layer_types": ["linear_attention"] * 4}}, "none attends"),
        ({"text_config": TEXT | {"hidden_act": "gelu"}}, "hidden_act = 'gelu'"),
    ],
)
def test_settings_of_the_text_part_are_refused_by_name(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        parse_config(QWEN3_5 | change)


@pytest.mark.parametrize("family", ["qwen3-moe", "qwen3.5", "qwen3.5-moe", "gpt-oss"])
def test_a_bad_folder_of_any_family_is_refused_by_what_is_wrong_in_it(
    family: str, tmp_path: Path
) -> None:
    save_reference(family, tmp_path, shard="1GB")
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    tensors, text = load_file(file), config.read_text()
    name = next(each for each in sorted(tensors) if "layers.0." in each)
    surplus = name.replace("layers.0.", "layers.99.")
    broken = {
        f"first '{surplus}'": {**tensors, surplus: tensors[name].clone()},
        f"'{name}' is torch.int32": {**tensors, name: tensors[name].to(torch.int32)},
        f"'{name}' is in none": {key: it for key, it in tensors.items() if key != name},
    }
    for message, written in broken.items():
        save_file(written, file)
        with pytest.raises(ModelError, match=re.escape(message)):
            load_decoder(tmp_path)
    save_file(tensors, file)
    config.write_text(json.dumps({**json.loads(text), "attention_nobody_knows": 1}))
    with pytest.raises(ModelError, match="'attention_nobody_knows' is not known"):
        load_decoder(tmp_path)


@pytest.mark.parametrize("family", ["qwen3-moe", "qwen3.5-moe", "gpt-oss"])
def test_a_token_cannot_go_to_more_experts_than_there_are(family: str) -> None:
    config = make_reference(family).config.to_dict() | {"num_experts_per_tok": 13}
    with pytest.raises(ModelError, match=r"num_experts_per_tok = 13 is more than num_(local_)?exp"):
        parse_config(config)


@pytest.mark.parametrize("family", list(FAMILIES | BLOCK_FAMILIES))
def test_what_a_configuration_leaves_out_is_what_transformers_takes_for_it(family: str) -> None:
    kind, extra = (FAMILIES | BLOCK_FAMILIES)[family]
    make = getattr(transformers, kind)
    whole = json.loads(json.dumps(make(**(SHAPE | extra)).to_dict()))
    for key in whole.keys() - SHAPE.keys() - {"model_type"}:
        rest = {name: value for name, value in whole.items() if name != key}
        try:
            ours = parse_config(rest)
        except ModelError:
            continue  # what must be said is asked for by name
        theirs = json.loads(json.dumps(make(**copy.deepcopy(rest)).to_dict()))
        assert ours == parse_config(theirs), key


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    save_reference("qwen3-moe", tmp_path, shard="1GB")
    tensors = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in sorted(tensors) if ".experts." in name)
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"{lost}' is in none of its files"):
        load_decoder(tmp_path)


@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_a_tower_is_left_out_where_it_is_published_and_where_transformers_writes_it(
    prefix: str, tmp_path: Path
) -> None:
    save_reference("qwen3.5", tmp_path, shard="1GB")
    tensors = load_file(tmp_path / "model.safetensors")
    plain = load_decoder(tmp_path).parameters
    tensors[f"{prefix}visual.blocks.0.attn.proj.bias"] = torch.zeros(1)
    save_file(tensors, tmp_path / "model.safetensors")
    assert load_decoder(tmp_path).parameters == plain
