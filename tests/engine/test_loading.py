"""A model folder is computed exactly as it says, or refused with the reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.hf_models import LINEAR, SHAPE, save_reference
from tinkex.engine.errors import ModelError
from tinkex.engine.model.families import parse_config
from tinkex.engine.model.loading import load_decoder

LLAMA = {**SHAPE, "model_type": "llama", "rope_theta": 10000.0, "hidden_act": "silu"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_reference("llama", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_dropout": 0.1}, "attention_dropout = 0.1"),
        ({"logit_softcap": 30.0}, "'logit_softcap' is not known"),
        ({"quantization_config": {"bits": 4}}, "'quantization_config'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "needs 'factor'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta": 1}}, "'beta' is unknown"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"head_dim": 15}, "heads of size 15 turns 15"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.1}, "heads of size 16 turns 1 "),
        ({"hidden_size": None}, "hidden_size must be a whole number"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8,
          "layer_types": ["full_attention"]}, "layer_types"),
    ],
)  # fmt: skip
def test_settings_that_change_the_maths_are_refused_by_name(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        parse_config(LLAMA | change)


@pytest.mark.parametrize(
    "change",
    [
        {"rms_norm_eps": None},
        {"rms_norm_eps": float("nan")},
        {"head_dim": "16"},
        {"attention_bias": "false"},
        {"tie_word_embeddings": "false"},
        {"rope_theta": -1.0},
        {"rope_scaling": "linear"},
        {"rope_parameters": [1]},
        {"model_type": "mistral", "sliding_window": -1},
        {"model_type": "mistral", "sliding_window": 0},
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": "none"},
        {"model_type": "qwen3", "use_sliding_window": True, "layer_types": "full_attention"},
        {"model_type": "smollm3", "no_rope_layer_interval": 0},
        {"model_type": "gemma3_text", "query_pre_attn_scalar": 0},
        {"model_type": "granite", "logits_scaling": None},
    ],
    ids=str,
)
def test_settings_that_are_no_such_thing_are_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=f"config.json: {list(change)[-1]} must be"):
        parse_config(LLAMA | change)


@pytest.mark.parametrize(
    "wrong", [{"factor": 0}, {"factor": "2"}, {"beta_fast": float("inf")}, {"truncate": 1}], ids=str
)
def test_rope_settings_that_are_no_numbers_are_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ModelError, match=f"rope setting {name} must be"):
        parse_config(LLAMA | {"rope_scaling": YARN | wrong})


def test_harmless_and_switched_off_keys_are_accepted() -> None:
    extra = {"torch_dtype": "bfloat16", "use_cache": True, "some_new_switch": False, "other": None}
    assert parse_config(LLAMA | extra) == parse_config(LLAMA)
    generation = {"cache_implementation": "hybrid"}  # as Gemma 3 is published
    assert parse_config(LLAMA | generation) == parse_config(LLAMA)


def test_smollm3_is_served_as_it_is_published() -> None:
    """With settings of windows that no layer has, and of how its training was cut up."""
    published = {
        **SHAPE, "model_type": "smollm3", "hidden_act": "silu", "max_window_layers": 28,
        "pretraining_tp": 2, "sliding_window": None, "use_sliding_window": False,
        "no_rope_layer_interval": 4, "no_rope_layers": [1, 0],
        "layer_types": ["full_attention"] * 2, "rope_theta": 5e6, "tie_word_embeddings": True,
    }  # fmt: skip
    config = parse_config(published)
    assert config.windows == (None, None)
    assert [layer.mixer.rope is not None for layer in config.layers] == [True, False]


YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize("family", ["mistral", "ministral", "smollm3"])
def test_layers_that_are_listed_as_sliding_slide_and_no_others(family: str) -> None:
    listed = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    assert parse_config({**SHAPE, "model_type": family, **listed}).windows == (16, None)


OLMO = {**SHAPE, "model_type": "olmo3", "layer_types": ["sliding_attention", "full_attention"]}


@pytest.mark.parametrize(
    "said",
    [
        {"rope_theta": 5e5, "rope_scaling": YARN},
        {"rope_parameters": YARN | {"rope_theta": 5e5}},
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
                "full_attention": YARN | {"rope_theta": 5e5},
            }
        },
    ],
    ids=["as published", "said once", "by kind"],
)
def test_only_layers_of_olmo3_that_see_everything_are_scaled(said: dict[str, Any]) -> None:
    sliding, full = (layer.mixer.rope for layer in parse_config(OLMO | said).layers)
    assert (sliding.kind, full.kind) == ("default", "yarn")
    assert sliding.theta == full.theta == 5e5


def test_rope_by_kind_of_layer_is_refused_where_a_family_has_one_kind() -> None:
    by_kind = {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}
    with pytest.raises(ModelError, match="'full_attention' layers alone are not supported"):
        parse_config(LLAMA | {"rope_parameters": by_kind})


def test_old_and_new_rope_settings_are_the_same() -> None:
    old = {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    assert parse_config(old) == parse_config(new | {"rope_parameters": LINEAR})


def test_a_shard_that_is_missing_cut_or_short_of_a_tensor_is_named(folder: Path) -> None:
    shards = sorted(folder.glob("model-*.safetensors"))
    whole = shards[0].read_bytes()
    shards[0].write_bytes(whole[:-50])
    with pytest.raises(ModelError, match=f"{shards[0].name} is damaged"):
        load_decoder(folder)
    shards[0].unlink()
    with pytest.raises(ModelError, match=f"{shards[0].name} is missing"):
        load_decoder(folder)
    shards[0].write_bytes(whole)
    tensors = load_file(shards[0])
    lost = sorted(tensors)[0]
    save_file({k: v for k, v in tensors.items() if k != lost} or {"x": torch.ones(1)}, shards[0])
    with pytest.raises(ModelError, match=f"does not hold '{lost}'"):
        load_decoder(folder)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("family", ["llama", "qwen3-moe", "qwen3.5", "gpt-oss"])
def test_weights_that_are_no_numbers_are_refused_with_tensor_and_file(
    tmp_path: Path, family: str, value: float
) -> None:
    """Of every part of a model: each alone would make every logprob NaN, for every tenant."""
    save_reference(family, tmp_path, shard="40KB")
    for file in sorted(tmp_path.glob("model-*.safetensors")):
        whole = file.read_bytes()
        for name, tensor in (tensors := load_file(file)).items():
            broken = tensor.clone()
            broken.flatten()[-1] = value
            save_file(tensors | {name: broken}, file)
            told = rf"{re.escape(name)}' in {file.name} holds 1 numbers .*download that file again"
            with pytest.raises(ModelError, match=told):
                load_decoder(tmp_path)
        file.write_bytes(whole)
    load_decoder(tmp_path)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float16, torch.float64])
def test_weights_of_any_floating_point_width_are_looked_at(
    tmp_path: Path, kind: torch.dtype
) -> None:
    save_reference("llama", tmp_path, shard="1GB")
    file = tmp_path / "model.safetensors"
    stored = {name: tensor.to(kind) for name, tensor in load_file(file).items()}
    save_file(stored, file)
    load_decoder(tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    stored[name].flatten()[-1] = torch.nan
    save_file(stored, file)
    with pytest.raises(ModelError, match=f"'{name}' in model.safetensors holds 1 numbers"):
        load_decoder(tmp_path)


def test_config_and_weights_must_agree(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"intermediate_size": 100}))
    with pytest.raises(ModelError, match=r"shape \(96, 64\).*asks for.*\(100, 64\)"):
        load_decoder(folder)
    path.write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(ModelError, match=r"does not use, first 'model\.layers\.1"):
        load_decoder(folder)
    path.write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"'model.layers.2.*in none of its files"):
        load_decoder(folder)
    path.write_text("{")
    with pytest.raises(ModelError, match=r"config.json cannot be read"):
        load_decoder(folder)
    path.unlink()
    with pytest.raises(ModelError, match=r"config.json is missing"):
        load_decoder(folder)


def test_a_tied_models_own_unembedding_must_be_its_embedding(tmp_path: Path) -> None:
    """transformers would compute with both, vLLM with the embedding alone."""
    save_reference("smollm2", tmp_path, shard="1GB")
    file = tmp_path / "model.safetensors"
    tensors, embed = load_file(file), "model.embed_tokens.weight"
    save_file(tensors | {"lm_head.weight": tensors[embed].clone()}, file)
    load_decoder(tmp_path)
    save_file(tensors | {"lm_head.weight": tensors[embed] * 1.01}, file)
    with pytest.raises(ModelError, match=r"tie_word_embeddings is true, but tensor 'lm_head"):
        load_decoder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert not torch.equal(load_decoder(tmp_path).weights.unembed, tensors[embed])


def test_tied_embeddings_and_matching_dtypes_are_not_copied(tmp_path: Path) -> None:
    save_reference("smollm2", tmp_path, shard="1GB")
    weights = load_decoder(tmp_path).weights
    assert weights.unembed is weights.embed
    assert len({tensor.data_ptr() for tensor in weights.tensors()}) == len(weights.tensors())
