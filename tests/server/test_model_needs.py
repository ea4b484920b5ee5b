"""What a model needs is told from its headers, and what does not fit says why."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from tinkex.server.engines.model_needs import Machine, model_needs, this_machine


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
