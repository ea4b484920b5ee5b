"""`tinkex checkpoint export` on folders: what it writes, tells and refuses."""

from __future__ import annotations

import json
from pathlib import Path

from support.command_line import CommandLine, FakeClients, FakeRest, Ran
from support.json_shape import mismatches, shapes
from support.sampling import tiny_folder, write_random_adapter


def export(*words: str) -> Ran:
    return CommandLine(FakeClients(FakeRest()))("checkpoint", "export", *words)


def test_a_downloaded_folder_is_written_in_another_layout(tmp_path: Path) -> None:
    archive = write_random_adapter(tmp_path / "archive", 3)
    base, out = str(tiny_folder()), tmp_path / "out"
    ran = export(str(archive), "--layout", "vllm", "--base", base, "-o", str(out), "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert mismatches(told, shapes()["checkpoint export"]) == []
    assert (told["layout"], told["largest_rank"]) == ("vllm", 4)
    assert sorted(path.name for path in out.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    again = export(str(archive), "--layout", "merged", "--base", base, "-o", str(out))
    assert (again.code, "already exists" in again.err) == (1, True)
    ran = export(str(archive), "--layout", "merged", "--base", base, "-o", str(out), "--force")
    assert ran.code == 0, ran.err
    assert "AutoModelForCausalLM" in ran.out
    assert (out / "model.safetensors").is_file()
    assert not (out / "adapter_config.json").exists()


def test_a_base_model_must_be_known_and_fit(tmp_path: Path) -> None:
    archive, out = write_random_adapter(tmp_path / "archive", 3), str(tmp_path / "out")
    nameless = export(str(archive), "--layout", "merged", "-o", out)
    assert "--base FOLDER" in nameless.err
    absent = export(str(archive), "--layout", "peft", "--base", "org/absent", "-o", out)
    assert "not on this machine: org/absent" in absent.err
    other = str(tiny_folder("tinkex/tiny-qwen3-moe"))
    wrong = export(str(archive), "--layout", "peft", "--base", other, "-o", out)
    assert "not trained on this base model" in wrong.err
    assert {nameless.code, absent.code, wrong.code} == {1}
    assert [path.name for path in tmp_path.iterdir()] == ["archive"], "nothing is left behind"
