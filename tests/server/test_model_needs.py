"""What a model needs is told from its headers, and what does not fit says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.sampling import tiny_folder
from tinkex.engine.builtin.tiny import TINY_MODELS
from tinkex.engine.model.known import KNOWN
from tinkex.engine.model.sizes import sizes_of_raw
from tinkex.server.engines.model_needs import Machine, known_needs, model_needs, this_machine

H200 = Machine("gpu", 139 << 30)


def folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "gpt_oss"}')
    save_file({"a": torch.zeros(5, 7, dtype=torch.bfloat16)}, path / "model-1.safetensors")
    packed = {
        "m_blocks": torch.zeros(2, 3, 16, dtype=torch.uint8),
        "m_scales": torch.zeros(2, 3, dtype=torch.uint8),
    }
    save_file(packed, path / "model-2.safetensors")
    return path


def test_parameters_are_counted_and_widened_for_the_device(tmp_path: Path) -> None:
    found = model_needs(folder(tmp_path / "m"), Machine("cpu", 1 << 30))
    assert found is not None
    assert (found.family, found.parameters) == ("gpt_oss", 5 * 7 + 2 * 3 * 32)
    assert found.memory == 4 * found.parameters
    assert found.reason is None
    on_gpu = model_needs(tmp_path / "m", Machine("gpu", 100))
    assert on_gpu is not None
    assert on_gpu.memory == 2 * on_gpu.parameters
    assert on_gpu.reason is not None
    assert "this gpu has 0 GiB" in on_gpu.reason


def test_a_folder_that_does_not_tell_needs_nothing_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(bytes(2048))
    assert model_needs(tmp_path, this_machine()) is None
    assert this_machine().memory > 0


@pytest.mark.parametrize("model", sorted(TINY_MODELS))
def test_parameters_are_those_of_the_files(model: str) -> None:
    found = model_needs(tiny_folder(model), Machine("cpu", 1 << 30))
    assert found is not None
    stored = load_file(tiny_folder(model) / "model.safetensors").values()
    assert found.parameters == sum(tensor.numel() for tensor in stored)
    assert found.active is not None
    assert (found.active < found.parameters) == ("moe" in model or "oss" in model)


@pytest.mark.parametrize(
    ("name", "billions", "gigabytes"),
    [
        ("Qwen/Qwen3-8B", 8.19, 16),
        ("Qwen/Qwen3.5-4B", 4.21, 9),
        ("Qwen/Qwen3.5-9B", 8.95, 19),
        ("Qwen/Qwen3.8-27B", 26.9, 54),
        ("Qwen/Qwen3-30B-A3B", 30.53, 61),
        ("Qwen/Qwen3.6-35B-A3B", 34.66, 70),
        ("openai/gpt-oss-20b", 20.91, 42),
        ("openai/gpt-oss-120b", 116.83, 65),
    ],
)
def test_known_models_have_their_published_sizes(
    name: str, billions: float, gigabytes: float
) -> None:
    """Published bytes count a vision tower too, which is not loaded."""
    needs = known_needs(H200)[name]
    assert needs.parameters / 1e9 == pytest.approx(billions, rel=2e-3)
    assert 0.9 * gigabytes < needs.memory / 1e9 <= 1.03 * gigabytes


def test_a_run_and_a_sequence_are_reckoned_with_beside_the_weights() -> None:
    """Rank 32 on 35B-A3B is 561 million parameters: with gradient and moments 9 GB, in bfloat16
    one more. A sequence's states of it are 63 MiB."""
    needs = known_needs(H200)["Qwen/Qwen3.6-35B-A3B"]
    assert needs.training is not None
    assert needs.sampling is not None
    assert needs.training - needs.memory == 17_545_728 * 32 * 18
    assert 60 << 20 < needs.sampling - needs.memory - 8192 * 10 * 2 * 2 * 256 * 2 < 64 << 20
    assert needs.reason is None
    small = known_needs(Machine("gpu", 73 << 30))["Qwen/Qwen3.6-35B-A3B"].reason
    assert small is not None
    assert small.startswith("to sample only: with a run of rank 32")
    assert "no" not in (known_needs(H200)["openai/gpt-oss-20b"].reason or "")
    assert not known_needs(H200)["openai/gpt-oss-20b"].packed_experts


def test_experts_in_mxfp4_are_counted_packed_where_widened_ones_do_not_fit() -> None:
    """As an engine keeps them there: `weights_room` is the same part of the same memory."""
    large = known_needs(H200)["openai/gpt-oss-120b"]
    assert (large.reason, large.packed_experts, large.ranks) == (None, True, 1)
    assert 60 << 30 < large.memory < 62 << 30
    assert large.sampling is not None
    assert large.sampling - large.memory > 128 * 5760 * 2880 * 2, "a layer's gate and up, widened"
    small = known_needs(Machine("cpu", 32 << 30))["openai/gpt-oss-20b"]
    assert (small.reason, small.packed_experts) == (None, True)
    tiny = known_needs(Machine("gpu", 12 << 30))["openai/gpt-oss-20b"].reason
    assert tiny == "its weights take 13 GiB, this gpu has 12 GiB"
    wide = {k: v for k, v in KNOWN["openai/gpt-oss-120b"].items() if k != "quantization_config"}
    assert sizes_of_raw(wide).packable == 0


def test_a_model_larger_than_one_gpu_is_planned_for_as_few_as_can_share_it() -> None:
    cards = Machine("gpu", 80 << 30, 8)
    needs = known_needs(cards)
    assert needs["Qwen/Qwen3-8B"].ranks == 1
    large = needs["meta-llama/Llama-3.3-70B-Instruct"]
    assert (large.reason, large.ranks) == (None, 2)
    alone = known_needs(Machine("gpu", 80 << 30))["meta-llama/Llama-3.3-70B-Instruct"]
    assert alone.reason is not None
    assert alone.ranks == 1


def test_the_plan_says_which_parallelism_and_deals_experts_out_whole_before_it_cuts_slivers() -> (
    None
):
    cards = Machine("gpu", 40 << 30, 8)
    mixture = known_needs(cards)["openai/gpt-oss-120b"]
    assert mixture.plan == "--engine ranks=8 (tensor parallelism)", "360 columns of each expert"
    config = dict(KNOWN["openai/gpt-oss-120b"])
    thin = config | {"intermediate_size": 512, "hidden_size": 11520}
    with pytest.raises(ValueError, match="deal out whole ones"):
        sizes_of_raw(thin, 8)
    assert sizes_of_raw(thin, 8, whole_experts=True).parameters < sizes_of_raw(thin).parameters / 5
    assert "whole_experts=1 (expert" in replace(mixture, whole_experts=True).plan
