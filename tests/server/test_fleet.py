"""How many engines there are and what each gets: one per GPU, or a share of the threads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tinkex.engine.model.known import KNOWN
from tinkex.server.engines import model_needs as needs
from tinkex.server.engines.fleet import (
    FleetProblem,
    Span,
    check_memory,
    choose_fleet,
    engine_specs,
    fewest_of,
    wanted_in,
)
from tinkex.server.engines.model_needs import Machine, model_needs
from tinkex.server.settings import ModelSpec, Settings

ONE, TWO = ModelSpec("one", "a"), ModelSpec("two", "b")


@pytest.mark.parametrize(
    ("wanted", "models", "device", "gpus", "engines", "devices"),
    [
        ("auto", 1, "auto", 0, 1, 0),
        ("auto", 1, "auto", 1, 1, 0),
        ("auto", 1, "auto", 4, 4, 4),
        ("auto", 2, "cuda", 4, 2, 4),
        ("auto", 3, "auto", 2, 1, 2),
        ("auto", 1, "cuda:1", 4, 1, 0),
        (3, 1, "cpu", 4, 3, 0),
        (2, 1, "auto", 4, 2, 4),
    ],
)
def test_auto_is_one_per_gpu_shared_out_between_models_and_one_on_a_cpu(
    wanted: int, models: int, device: str, gpus: int, engines: int, devices: int
) -> None:
    found, dealt = choose_fleet(wanted, models, device, gpus)
    assert (found, len(dealt)) == (engines, devices)


@pytest.mark.parametrize(("wanted", "device", "gpus"), [(3, "auto", 2), (2, "cuda:1", 4)])
def test_more_engines_than_gpus_are_refused_with_what_to_do(
    wanted: int, device: str, gpus: int
) -> None:
    with pytest.raises(FleetProblem, match=f"--engines {wanted}"):
        choose_fleet(wanted, 1, device, gpus)


def test_engines_on_a_cpu_share_its_threads_and_one_alone_takes_what_there_is(
    tmp_path: Path,
) -> None:
    cores = len(os.sched_getaffinity(0))
    specs = engine_specs(Settings(tmp_path, (ONE,), engines=2))
    assert [(spec.name, spec.threads) for spec in specs] == [
        ("one#0", max(1, cores // 2)),
        ("one#1", max(1, cores // 2)),
    ]
    [alone] = engine_specs(Settings(tmp_path, (ONE,)))
    assert alone.threads is None


def test_engines_of_one_machine_share_its_memory(tmp_path: Path) -> None:
    specs = engine_specs(Settings(tmp_path, (ONE, TWO), engines=2))
    assert [spec.memory_share for spec in specs] == [0.25] * 4
    [alone] = engine_specs(Settings(tmp_path, (ONE,)))
    assert alone.memory_share == 1.0
    on_ray = engine_specs(Settings(tmp_path, (ONE,), engines=3, ray="auto"))
    assert {spec.memory_share for spec in on_ray} == {1.0}


def test_engines_of_all_models_are_dealt_to_the_gpus_in_turn(tmp_path: Path) -> None:
    gpus = tuple(f"cuda:{number}" for number in range(4))
    specs = engine_specs(Settings(tmp_path, (ONE, TWO), engines=2, devices=gpus))
    assert [(spec.name, spec.device) for spec in specs] == [
        ("one#0", "cuda:0"),
        ("one#1", "cuda:1"),
        ("two#0", "cuda:2"),
        ("two#1", "cuda:3"),
    ]
    assert {spec.threads for spec in specs} == {None}


def test_the_environment_says_how_many_and_a_wrong_number_is_named() -> None:
    assert wanted_in({}) == 1
    assert wanted_in({"TINKEX_ENGINES": "auto"}) == "auto"
    assert wanted_in({"TINKEX_ENGINES": "3"}) == 3
    assert wanted_in({"TINKEX_ENGINES": "1-4"}) == Span(1, 4)
    assert wanted_in({"TINKEX_ENGINES": "2-2"}) == 2
    for wrong in ("many", "0-2", "3-2", "1-", "1-257", "-1", "1-2-3"):
        with pytest.raises(FleetProblem, match=f"TINKEX_ENGINES='{wrong}'.*1-4"):
            wanted_in({"TINKEX_ENGINES": wrong})


def test_a_span_is_dealt_as_its_largest_number_and_keeps_its_fewest_awake() -> None:
    assert choose_fleet(Span(1, 4), 1, "auto", 4) == choose_fleet(4, 1, "auto", 4)
    assert (fewest_of(Span(1, 4)), fewest_of(4), fewest_of("auto")) == (1, None, None)
    with pytest.raises(FleetProblem, match="--engines 1-3"):
        choose_fleet(Span(1, 3), 1, "auto", 2)


def test_engines_whose_weights_are_more_than_the_memory_are_refused_before_they_start(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = model_needs(tiny_llama, Machine("cpu", 1)).memory
    each = weights + needs.PROCESS_BYTES
    monkeypatch.setattr(needs, "cpu_machine", lambda: Machine("cpu", 3 * each))
    check_memory(3, [tiny_llama], "auto", None)
    with pytest.raises(FleetProblem, match="give --engines 3 or less"):
        check_memory(4, [tiny_llama], "auto", None)
    with pytest.raises(FleetProblem, match="give --engines 1 or less"):
        check_memory(2, [tiny_llama, tiny_llama], "auto", None)


def test_experts_that_stay_in_mxfp4_in_an_engines_share_are_counted_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["openai/gpt-oss-20b"]))
    monkeypatch.setattr(needs, "cpu_machine", lambda: Machine("cpu", 40 << 30))
    check_memory(2, [tmp_path], "auto", None)
    with pytest.raises(FleetProblem, match="give --engines 2 or less"):
        check_memory(3, [tmp_path], "auto", 1)
    with pytest.raises(FleetProblem, match="their processes and weights take 157 GiB"):
        check_memory(2, [tmp_path], "auto", 0)


def test_engines_of_a_small_model_count_as_processes() -> None:
    check_memory(2, [], "auto", None)
    with pytest.raises(FleetProblem, match=r"--engines 9999: their processes and weights"):
        check_memory(9999, [Path("nothing tells")], "auto", None)
