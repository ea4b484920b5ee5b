"""`tinkex model local` and the options of `tinkex serve`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import CommandLine
from support.json_shape import mismatches, shapes


def model_folder(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(2048))


def test_what_this_machine_has_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKEX_CACHE", str(tmp_path / "ours"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    model_folder(tmp_path / "ours" / "tinkex--tiny-llama-1")
    model_folder(tmp_path / "ours" / "tinkex--tiny-qwen3-moe-1")
    model_folder(tmp_path / "hf" / "hub" / "models--org--mine" / "snapshots" / "abc")
    (tmp_path / "hf" / "hub" / "models--org--broken" / "snapshots" / "abc").mkdir(parents=True)
    ran = CommandLine()("model", "local", "--json")
    assert ran.code == 0, ran.err
    value = json.loads(ran.out)
    assert mismatches(value, shapes()["model local"]) == []
    found = {model["name"]: model for model in value["models"]}
    assert found["org/mine"]["size_bytes"] == 2048
    assert found["tinkex/tiny-llama"]["source"] == "tinkex cache"
    assert found["tinkex/tiny-qwen3"]["folder"] is None
    assert found["tinkex/tiny-qwen3-moe"]["source"] == "tinkex cache"
    assert found["tinkex/tiny-qwen3"]["fits"] == "yes"
    assert "org/broken" not in found
    known = found["Qwen/Qwen3.6-35B-A3B"]
    assert (known["here"], known["family"], known["source"]) == (False, "qwen3_5_moe_text", "hub")
    assert known["active_parameters"] < 4e9 < known["parameters"]
    assert known["memory_bytes"] < known["sampling_bytes"] < known["training_bytes"]
    assert [model["default"] for model in value["models"]].count(True) <= 1
    assert "ready to serve" in CommandLine()("models").out, "its old name"


def test_the_models_fit_in_eighty_columns_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    lines = CommandLine(terminal=True)("model", "local").out.splitlines()
    assert max(map(len, lines)) <= 80
    (row,) = [line for line in lines if "meta-llama/Llama-3.3-70B-Instruct" in line]
    assert "70.6 B" in row


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("bogus=1", "the limits are body_bytes"),
        ("samples=0", "give a whole number above 0"),
        ("samples=many", "give a whole number above 0"),
        ("samples=1e3", "give a whole number above 0"),
    ],
)
def test_a_wrong_limit_is_wrong_usage(limit: str, words: str) -> None:
    ran = CommandLine()("serve", "--limit", limit)
    assert ran.code == 2
    assert words in ran.err


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("kv_byte=7", "kv_bytes"),
        ("kv_bytes=much", "above 0"),
        ("kv_bytes=-1", "above 0"),
        ("sampling_share=inf", "above 0"),
        ("sampling_share=1.5", "between 0 and 1"),
        ("threads=100000", "give a whole number from 1 to 1024"),
        ("ranks=65", "give a whole number from 1 to 64"),
        ("whole_experts=2", "give a whole number from 0 to 1"),
        ("packed_experts=-1", "give a whole number from 0 to 1"),
    ],
)
def test_a_wrong_setting_of_an_engine_is_wrong_usage(setting: str, words: str) -> None:
    ran = CommandLine()("serve", "--engine", setting)
    assert ran.code == 2
    assert words in ran.err


@pytest.mark.parametrize("given", ["CPU", "=8", "CPU=many"])
def test_a_wrong_resource_is_wrong_usage(given: str) -> None:
    ran = CommandLine()("serve", "--ray-resource", given)
    assert ran.code == 2
    assert f"{given!r}: give " in ran.err


@pytest.mark.parametrize("words", [("serve",), ("keys", "list"), ("home", "du")])
def test_a_home_that_is_empty_text_is_not_this_folder(words: tuple[str, ...]) -> None:
    ran = CommandLine()(*words, "--home", "")
    assert ran.code == 2
    assert "it is empty: name a folder" in ran.err


def test_settings_of_an_engine_are_read_as_what_they_are() -> None:
    from tinkex.cli.commands.serve import read_engine

    chosen = read_engine(("max_runs=3", "sampling_share=0.25", "packed_experts=0"))
    assert chosen == {"max_runs": 3, "sampling_share": 0.25, "packed_experts": 0}
    assert isinstance(chosen["max_runs"], int)


def test_limits_are_read_as_what_they_are() -> None:
    from tinkex.cli.commands.serve import read_limits

    limits = read_limits(("samples=7", "body_timeout_s=1.5"))
    assert (limits.samples, limits.body_timeout_s) == (7, 1.5)


def test_a_model_that_is_not_there_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = CommandLine()("serve", "--home", str(tmp_path / "h"), "--model", str(tmp_path / "none"))
    assert ran.code == 1
    assert len(capfd.readouterr().err.strip().splitlines()) == 1
