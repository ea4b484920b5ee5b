"""Experts in MXFP4 are read as the numbers they stand for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations import mxfp4 as reference

from support.hf_models import packed_experts, save_packed_gpt_oss
from tinkex.engine.errors import ModelError
from tinkex.engine.model import mxfp4
from tinkex.engine.model.blocks.experts import Experts
from tinkex.engine.model.loading import load_decoder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_byte_and_scale_is_widened_exactly(dtype: torch.dtype) -> None:
    blocks, scales = packed_experts(3, 64, 96)
    wide = mxfp4.widen(blocks, scales, dtype)
    theirs = reference.convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    assert torch.equal(wide, theirs.mT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_packed_gpt_oss(tmp_path)


def test_a_packed_folder_is_loaded_with_gate_and_up_apart(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    experts = load_decoder(folder).weights.layers[1].mlp
    assert isinstance(experts, Experts)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    wide = mxfp4.widen(tensors[f"{name}_blocks"], tensors[f"{name}_scales"], torch.float32)
    gate, up = experts.gate_up.chunk(2, dim=1)
    assert torch.equal(gate, wide[:, ::2])
    assert torch.equal(up, wide[:, 1::2])


def test_missing_or_misshapen_scales_are_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    kept = tensors.pop(name)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"down_proj_scales' is in none"):
        load_decoder(folder)
    save_file(tensors | {name: kept[:, :5].contiguous()}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"down_proj_scales.*asks for bytes of shape"):
        load_decoder(folder)


def test_a_scale_that_makes_no_number_is_named(folder: Path) -> None:
    """255 stands for none; the next ones make numbers that bfloat16 does not hold."""
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    for scale in (255, 253):
        tensors[name][3, 7, 0] = scale
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(ModelError, match=rf"down_proj_scales' holds a scale of {scale}"):
            load_decoder(folder)
    tensors[name][3, 7, 0] = 252
    save_file(tensors, folder / "model.safetensors")
    assert load_decoder(folder).weights.layers[0].mlp.down.isfinite().all()


def test_other_quantizations_are_refused_by_name(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="'fp8'"):
        load_decoder(folder)
