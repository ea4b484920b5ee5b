"""A saved run comes back bit for bit, and its adapter is an ordinary PEFT folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from support.hf_models import save_reference
from support.training import DEVICE, adam_step, call, random_datum, save_run, train
from tinkex.engine.adapters.peft_files import read_adapter, write_adapter
from tinkex.engine.errors import UserError
from tinkex.engine.messages import (
    CreateRun,
    Datum,
    LoadRun,
    LoraSpec,
    OptimStep,
    WeightsRef,
)
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training.run import write_snapshot
from tinkex.engine.training.trainer import Trainer

DIMUON = {"learning_rate": 0.01, "beta1": 0.9, "grad_clip_norm": 0.0}


def datum(seed: int) -> Datum:
    return random_datum(np.random.default_rng(seed), 12)


def warm(trainer: Trainer) -> None:
    """Two steps, and a gradient gathered on top."""
    for seed in range(2):
        train(trainer, call("run", datum(seed)))
        trainer.optim_step(adam_step("run"))
    train(trainer, call("run", datum(2)))


def step(trainer: Trainer, run: str) -> None:
    family = trainer._find(run).optimizer.name
    trainer.optim_step(
        adam_step(run) if family == "adamw" else OptimStep("op", run, family, DIMUON)
    )


@pytest.mark.parametrize("family", ["adamw", "dimuon"])
def test_a_training_checkpoint_continues_bit_for_bit(
    decoder: Decoder, tmp_path: Path, family: str
) -> None:
    first, second = Trainer(decoder), Trainer(decoder)
    first.create_run(CreateRun("op", "run", LoraSpec(8), family))
    train(first, call("run", datum(0)))
    step(first, "run")
    train(first, call("run", datum(1)))
    saved = save_run(first, "run", tmp_path, training=True)
    assert saved.step == 1
    assert saved.size_bytes == sum(f.stat().st_size for f in tmp_path.iterdir())

    info = second.load_run(
        LoadRun("op", "again", WeightsRef(str(tmp_path)), optimizer=True, create=True)
    )
    assert (info.lora.rank, info.optimizer, info.step) == (8, family, 1)
    for trainer, run in ((first, "run"), (second, "again")):
        train(trainer, call(run, datum(2)))
        step(trainer, run)
    own, theirs = first._find("run"), second._find("again")
    assert torch.equal(own.adapter.master, theirs.adapter.master)
    for name, tensor in own.optimizer.tensors.items():
        assert torch.equal(tensor, theirs.optimizer.tensors[name])


def test_weights_alone_start_the_optimizer_afresh(trainer: Trainer, tmp_path: Path) -> None:
    warm(trainer)
    save_run(trainer, "run", tmp_path, training=False)
    trainer.load_run(LoadRun("op", "run", WeightsRef(str(tmp_path)), optimizer=False))
    run = trainer._find("run")
    assert (run.step, run.gradient) == (0, None)
    assert all(not tensor.any() for tensor in run.optimizer.tensors.values())
    with pytest.raises(UserError, match="no optimizer state"):
        trainer.load_run(LoadRun("op", "run", WeightsRef(str(tmp_path)), optimizer=True))


def test_a_snapshot_is_of_its_moment_whatever_trains_on(trainer: Trainer, tmp_path: Path) -> None:
    warm(trainer)
    before = trainer._find("run").adapter.master.clone()
    snapshot = trainer.snapshot("run", training=True)
    trainer.optim_step(adam_step("run"))
    write_snapshot(snapshot, tmp_path)
    trainer.load_run(LoadRun("op", "run", WeightsRef(str(tmp_path)), optimizer=True))
    assert torch.equal(trainer._find("run").adapter.master, before)
    assert trainer._find("run").gradient is not None


def test_what_does_not_fit_changes_nothing(trainer: Trainer, tmp_path: Path) -> None:
    trainer.create_run(CreateRun("op", "small", LoraSpec(4)))
    trainer.create_run(CreateRun("op", "muon", LoraSpec(8), "dimuon"))
    for name in ("small", "muon"):
        (tmp_path / name).mkdir()
        save_run(trainer, name, tmp_path / name, training=True)
    before = trainer._find("run").adapter.master.clone()
    for name, message in (("small", "rank 4"), ("muon", "dimuon"), ("nowhere", "cannot be read")):
        with pytest.raises(UserError, match=message):
            trainer.load_run(LoadRun("op", "run", WeightsRef(str(tmp_path / name)), optimizer=True))
    weights = tmp_path / "small" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"adapter_model.safetensors cannot be read"):
        trainer.load_run(
            LoadRun("op", "new", WeightsRef(str(tmp_path / "small")), False, create=True)
        )
    assert torch.equal(trainer._find("run").adapter.master, before)
    assert trainer.runs == 3


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("file", ["adapter_model.safetensors", "training.safetensors"])
def test_a_checkpoint_that_holds_no_numbers_is_refused_and_changes_nothing(
    trainer: Trainer, tmp_path: Path, file: str, value: float
) -> None:
    warm(trainer)
    save_run(trainer, "run", tmp_path, training=True)
    before = trainer._find("run").adapter.master.clone()
    whole = load_file(tmp_path / file)
    for name in whole:
        broken = whole[name].clone()
        broken.flatten()[-1] = value
        save_file(whole | {name: broken}, tmp_path / file)
        with pytest.raises(UserError, match=rf"{file}: '{name}' holds NaN or infinity"):
            trainer.load_run(LoadRun("op", "run", WeightsRef(str(tmp_path)), optimizer=True))
    if file.startswith("adapter"):
        with pytest.raises(UserError, match="holds NaN or infinity"):
            read_adapter(tmp_path)  # as the sampler and exports do
    assert torch.equal(trainer._find("run").adapter.master, before)


def test_foreign_adapter_settings_are_refused_by_name(trainer: Trainer, tmp_path: Path) -> None:
    write_adapter(trainer.weights("run"), tmp_path)
    path = tmp_path / "adapter_config.json"
    config = json.loads(path.read_text())
    changes: list[tuple[dict[str, object], str]] = [
        ({"use_dora": True}, "use_dora"),
        ({"r": 0}, "r and lora_alpha"),
        ({"r": 9}, "not of rank 9"),
        ({"peft_type": "IA3"}, "LoRA"),
    ]
    for change, message in changes:
        path.write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=message):
            read_adapter(tmp_path)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_an_exported_adapter_merged_into_the_base_gives_the_same_logprobs(
    tmp_path: Path, family: str
) -> None:
    save_reference(family, tmp_path / "model")
    trainer = Trainer(load_decoder(tmp_path / "model", DEVICE))
    trainer.create_run(CreateRun("op", "run", LoraSpec(8, seed=1)))
    warm(trainer)
    trainer.optim_step(adam_step("run"))
    (tmp_path / "adapter").mkdir()
    save_run(trainer, "run", tmp_path / "adapter", training=True)
    sample = datum(5)
    (result,) = train(trainer, call("run", sample, forward_only=True))

    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    merged = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
    tokens = torch.from_numpy(sample.tokens.astype(np.int64))
    targets = torch.from_numpy(np.asarray(sample.inputs["target_tokens"]))
    with torch.no_grad():
        logprobs = merged(tokens[None]).logits[0].log_softmax(-1)
    expected = logprobs.gather(1, targets[:, None])[:, 0].numpy()
    np.testing.assert_allclose(
        result.outputs[0]["logprobs"], expected, atol=1e-4 if DEVICE == "cpu" else 0.3
    )
