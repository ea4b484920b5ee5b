"""Device, dtype and sizes follow from what was asked for and what there is, or are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from support.sampling import tiny_decoder, tiny_folder
from tinkex.engine.cpu import bf16_probe
from tinkex.engine.errors import ModelError
from tinkex.engine.limits import Limits
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.model.matrices.steady import Steady
from tinkex.engine.process import placement
from tinkex.engine.process.placement import (
    choose_placement,
    longest_training,
    memory_plan,
    sampling_limits,
    training_limits,
)
from tinkex.engine.sampling.cache.kv_cache import page_bytes
from tinkex.engine.settings import WorkerConfig


def config(**changes: Any) -> WorkerConfig:
    return WorkerConfig(str(tiny_folder()), **({"device": "cpu"} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int4"}, "dtype: 'int4'"),
        ({"device": "abacus"}, "device: 'abacus'"),
        ({"base": "fp4"}, "base: 'fp4' is not known; choose one of auto, fp8, fp8-weights"),
        ({"base": "fp8"}, "base: fp8 needs a GPU of compute capability 8.9 or more.*this is a cpu"),
        ({"device": "cuda:99"}, "device: 'cuda:99'"),
        ({"steady": True, "base": "fp8"}, "base: fp8 needs"),
        ({"steady": True, "dtype": "bfloat16"}, "steady: a CPU trains steadily in float32 only"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(placement, "cpu_survives_bfloat16", lambda: True)
    with pytest.raises(ModelError, match=message):
        choose_placement(config(**changes))


def test_the_longest_trained_sequence_follows_the_memory_of_a_pass() -> None:
    decoder = tiny_decoder()
    most = decoder.config.max_context
    assert longest_training(decoder, Limits(activation_bytes=1)) == most, "a CPU takes what comes"
    card: Any = SimpleNamespace(
        config=decoder.config, device=torch.device("cuda"), dtype=torch.bfloat16
    )
    assert longest_training(card, Limits(activation_bytes=1 << 40)) == most
    room = longest_training(card, Limits(activation_bytes=1 << 20))
    assert 0 < room < most
    assert longest_training(card, Limits(activation_bytes=2 << 20)) in (2 * room, 2 * room + 1)


def test_a_cpu_has_no_steady_kernels_and_a_gpu_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert choose_placement(config(steady=True)).base is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert isinstance(choose_placement(config(steady=True, device="cuda")).base, Steady)
    monkeypatch.setattr(placement, "float8_works", lambda device: True)
    with pytest.raises(ModelError, match=r"steady: goes with .* not with --base fp8"):
        choose_placement(config(steady=True, device="cuda", base="fp8"))


@pytest.mark.parametrize(
    ("model", "lacking"),
    [
        ("tinkex/tiny-qwen3-moe", "mixtures of experts yet, and this qwen3_moe"),
        ("tinkex/tiny-qwen3.5", "layers of linear attention"),
        ("tinkex/tiny-gpt-oss", "mixtures of experts and attention sinks"),
    ],
)
def test_models_without_steady_kernels_are_refused_by_name(model: str, lacking: str) -> None:
    with pytest.raises(ModelError, match=f"steady: there are no .* for {lacking}"):
        load_decoder(tiny_folder(model), base=Steady())


def test_the_cpu_computes_in_float32_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_placement(config()).dtype == torch.float32
    monkeypatch.setattr(placement, "cpu_survives_bfloat16", lambda: True)
    assert choose_placement(config(dtype="bfloat16")).dtype == torch.bfloat16


def test_a_cpu_that_dies_of_bfloat16_is_not_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "cpu_survives_bfloat16", lambda: False)
    with pytest.raises(ModelError, match="use float32"):
        choose_placement(config(dtype="bfloat16"))


def test_the_cache_fits_its_memory_and_the_context_the_model() -> None:
    decoder = tiny_decoder()
    size = page_bytes(decoder.config, decoder.dtype)
    assert sampling_limits(config(kv_bytes=10 * size + 1), decoder).pages == 10
    assert sampling_limits(config(max_context=100), decoder).max_context == 100
    with pytest.raises(ModelError, match="less than one page"):
        sampling_limits(config(kv_bytes=size - 1), decoder)
    with pytest.raises(ModelError, match="more than the model's 4096"):
        sampling_limits(config(max_context=5000), decoder)


def test_an_engine_beside_others_plans_its_cache_in_its_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = tiny_decoder()
    monkeypatch.setattr(placement, "memory_of", lambda _: 8 << 30)
    alone, beside = (
        sampling_limits(config(memory_share=share), decoder).pages for share in (1.0, 0.25)
    )
    assert alone // beside == 4
    with pytest.raises(ModelError, match=r"memory_share: 1.5 is not above 0 and at most 1"):
        sampling_limits(config(memory_share=1.5), decoder)


@pytest.mark.parametrize(
    ("program", "survives"),
    [("pass", True), ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False)],
)
def test_only_a_child_that_lives_counts(
    program: str, survives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bf16_probe, "_PROGRAM", program)
    assert bf16_probe.cpu_survives_bfloat16() is survives


def test_files_in_memory_count_as_available_to_runs(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  9000 kB\nMemFree:  1000 kB\nMemAvailable:  7000 kB\n")
    assert placement._available_bytes(meminfo) == 7000 << 10
    assert placement._available_bytes(tmp_path / "none") > 0


def test_the_plan_of_the_memory_names_every_bounded_part() -> None:
    decoder = tiny_decoder()
    bounded = config(run_bytes=1 << 20, host_run_bytes=1 << 21)
    limits = training_limits(bounded, decoder)
    plan = memory_plan(decoder, limits, sampling_limits(bounded, decoder))
    assert (plan["runs"], plan["runs in the host's memory"]) == (1 << 20, 1 << 21)
    assert all(size > 0 for size in plan.values())
    free = training_limits(config(), decoder)
    assert "runs" not in memory_plan(decoder, free, sampling_limits(config(), decoder))


def test_the_page_about_memory_names_the_shares_as_they_are() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "guides", "memory.md").read_text()
    dense, mixtures = placement._DENSE, placement._MIXTURES
    assert f"{dense.cache * 100:.0f} % of what is free once the model is loaded" in page
    assert f"more than {dense.activations * 100:.0f} % of a GPU's free memory" in page
    assert f"up to {dense.adapters * 100:.0f} % of a GPU's free memory" in page
    assert dense.adapters == mixtures.adapters
    for share in (mixtures.cache, mixtures.activations):
        assert f"(mixtures {share * 100:.0f} %)" in page


def test_a_card_keeps_dozens_of_samplers_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an 8B model at rank 32 each takes 260 MB; a card with 124 GB free had room for eight."""
    card = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (124 << 30, 141 << 30))
    tiny = tiny_decoder()
    decoder: Any = SimpleNamespace(
        config=tiny.config, device=card, dtype=tiny.dtype, parameters=8_000_000_000
    )
    assert sampling_limits(config(), decoder).adapter_bytes > 32 * 260_000_000
    assert sampling_limits(config(adapter_bytes=5), decoder).adapter_bytes == 5
    assert sampling_limits(config(), tiny).adapter_bytes == 2 << 30
    for shares in (placement._DENSE, placement._MIXTURES):
        assert sum(shares) < 0.95


def test_a_small_model_takes_a_bursts_prompts_in_one_step() -> None:
    """As many tokens as cost no more than a few decode steps; of larger models 256."""
    decoder = tiny_decoder()
    small = sampling_limits(config(), decoder).step_tokens
    assert 32 * 32 <= small <= 4096
    larger = SimpleNamespace(
        config=decoder.config, device=decoder.device, dtype=decoder.dtype, parameters=135_000_000
    )
    assert sampling_limits(config(), cast(Any, larger)).step_tokens == 256
    assert sampling_limits(config(step_tokens=64), decoder).step_tokens == 64
