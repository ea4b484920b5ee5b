"""Device, dtype and sizes follow from what was asked for and what there is, or are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.sampling import tiny_decoder, tiny_folder
from tinkex.engine import placement, probe
from tinkex.engine.errors import ModelError
from tinkex.engine.placement import choose_placement, choose_threads, sampling_limits
from tinkex.engine.sampling.cache import page_bytes
from tinkex.engine.settings import WorkerConfig


def config(**changes: Any) -> WorkerConfig:
    return WorkerConfig(str(tiny_folder()), **({"device": "cpu"} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int4"}, "dtype: 'int4'"),
        ({"device": "abacus"}, "device: 'abacus'"),
        ({"device": "cuda:99"}, "device: 'cuda:99'"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=message):
        choose_placement(config(**changes))


def test_the_cpu_computes_in_bfloat16_only_if_the_probe_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "cpu_prefers_bfloat16", lambda _: True)
    assert choose_placement(config()).dtype == torch.float32, "too small to ask"
    monkeypatch.setattr(placement, "_LARGE_MODEL_BYTES", 1)
    for prefers, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(placement, "cpu_prefers_bfloat16", lambda _, said=prefers: said)
        assert choose_placement(config()).dtype == dtype
    assert choose_placement(config(dtype="float32")).dtype == torch.float32


def test_the_cache_fits_its_memory_and_the_context_the_model() -> None:
    decoder = tiny_decoder()
    size = page_bytes(decoder.config, decoder.dtype)
    assert sampling_limits(config(kv_bytes=10 * size + 1), decoder).pages == 10
    assert sampling_limits(config(max_context=100), decoder).max_context == 100
    with pytest.raises(ModelError, match="less than one page"):
        sampling_limits(config(kv_bytes=size - 1), decoder)
    with pytest.raises(ModelError, match="more than the model's 4096"):
        sampling_limits(config(max_context=5000), decoder)
    assert choose_threads(decoder) == 1


@pytest.mark.parametrize(
    ("program", "prefers"),
    [
        ("print(2.5)", True),
        ("print(1.1)", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False),
        ("print('nonsense')", False),
    ],
)
def test_only_a_child_that_lives_and_is_faster_counts(
    program: str, prefers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_cpu_description", lambda: "flags: avx512_bf16")
    monkeypatch.setattr(probe, "_PROGRAM", ["-c", program])
    assert probe.cpu_prefers_bfloat16(str(tmp_path / "cache")) is prefers
    (verdict,) = (tmp_path / "cache").iterdir()
    assert json.loads(verdict.read_text()) == {"prefers": prefers}
    monkeypatch.setattr(probe, "_PROGRAM", ["-c", "print(0 if {prefers} else 9)"])
    assert probe.cpu_prefers_bfloat16(str(tmp_path / "cache")) is prefers, "remembered"


def test_a_cpu_without_the_units_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_cpu_description", lambda: "flags: sse2 avx2")
    monkeypatch.setattr(probe, "_PROGRAM", ["-c", "print(9)"])
    assert not probe.cpu_prefers_bfloat16()
