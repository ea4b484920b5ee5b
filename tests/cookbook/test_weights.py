"""The cookbook's weight tools take our archives as they are: merged models compute what we compute.

Loaded in the wrong way an adapter is silently dropped, so each also must differ from its base.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from support.sampling import tiny_folder, write_random_adapter
from support.training import call, random_datum, train
from tinkex.engine.adapters.peft_files import read_adapter
from tinkex.engine.builtin.tiny import TINY_MODELS
from tinkex.engine.messages import CreateRun, LoraSpec
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training.trainer import Trainer

weights = pytest.importorskip("tinker_cookbook.weights")

DATUM = random_datum(np.random.default_rng(0), 40)


@pytest.fixture(params=sorted(TINY_MODELS))
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def with_tower(folder: Path, target: Path, *, tied: bool = False) -> Path:
    """The same text model as Qwen3.5 is published: beside a vision tower, under its prefix."""
    target.mkdir()
    for file in folder.iterdir():
        if file.suffix == ".json":
            (target / file.name).write_bytes(file.read_bytes())
    text = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": tied}
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "text_config": text, "tie_word_embeddings": tied, "image_token_id": 3,
        "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2,
                          "out_hidden_size": text["hidden_size"], "patch_size": 4,
                          "spatial_merge_size": 1, "temporal_patch_size": 1,
                          "num_position_embeddings": 4, "in_channels": 3},
    }  # fmt: skip
    (target / "config.json").write_text(json.dumps(config))
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if not (tied and name == "lm_head.weight")
    }
    tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(1)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def our_logprobs(folder: Path, adapter: Path) -> NDArray[np.float32]:
    trainer = Trainer(load_decoder(folder))
    trainer.create_run(CreateRun("op", "run", LoraSpec(4, seed=1)))
    trainer._find("run").adapter.load(read_adapter(adapter))
    (result,) = train(trainer, call("run", DATUM, forward_only=True))
    return np.asarray(result.outputs[0]["logprobs"])


def their_logprobs(folder: Path) -> Any:
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    targets = torch.from_numpy(np.asarray(DATUM.inputs["target_tokens"]))[:, None]
    with torch.no_grad():
        logits = loaded(torch.from_numpy(DATUM.tokens.astype(np.int64))[None]).logits[0]
    return logits.log_softmax(-1).gather(1, targets)[:, 0].numpy()


def test_a_merged_model_computes_what_the_run_computes(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    base = tiny_folder(model)
    if model == "tinkex/tiny-qwen3.5":
        base = with_tower(base, tmp_path / "published")
    adapter = write_random_adapter(tmp_path / "adapter", 3, model=model)
    ours = our_logprobs(base, adapter)
    merged = tmp_path / "merged"
    weights.build_hf_model(base_model=str(base), adapter_path=str(adapter), output_path=str(merged))
    assert np.abs(their_logprobs(base) - ours).max() > 0.1, "the adapter changes nothing"
    np.testing.assert_allclose(their_logprobs(merged), ours, atol=1e-3)


def test_a_converted_adapter_holds_every_module(model: str, tmp_path: Path) -> None:
    base = tiny_folder(model)
    if model == "tinkex/tiny-qwen3.5":
        base = with_tower(base, tmp_path / "published")
    adapter = write_random_adapter(tmp_path / "adapter", 3, model=model)
    weights.build_lora_adapter(
        base_model=str(base), adapter_path=str(adapter), output_path=str(tmp_path / "peft")
    )
    converted = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    assert all(tensor.ndim == 2 and tensor.any() for tensor in converted.values())
    written = load_file(adapter / "adapter_model.safetensors")
    flat = [tensor for tensor in written.values() if tensor.ndim == 2]
    assert len(converted) >= len(flat) - 4 * 3


def test_a_tied_unembedding_merges_into_the_embedding(tmp_path: Path) -> None:
    """As the cookbook does it with archives of the hosted service: Qwen3.5-4B is tied."""
    model = "tinkex/tiny-qwen3.5"
    base = with_tower(tiny_folder(model), tmp_path / "published", tied=True)
    adapter = write_random_adapter(tmp_path / "adapter", 3, model=model)
    merged = tmp_path / "merged"
    weights.build_hf_model(base_model=str(base), adapter_path=str(adapter), output_path=str(merged))
    a, b = read_adapter(adapter).factors[-1, "lm_head"]
    name = "model.language_model.embed_tokens.weight"
    change = (
        load_file(merged / "model.safetensors")[name] - load_file(base / "model.safetensors")[name]
    )
    torch.testing.assert_close(change, (b @ a) * (32 / 4), atol=1e-2, rtol=1e-2)
