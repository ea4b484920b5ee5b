"""The engine's numbers are those of transformers and PEFT, for every family, in one mixed batch.

On a GPU the base is bfloat16 and the reference float32 on the host; tolerances are stated below.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch

from support.hf_models import FAMILIES, save_reference
from support.training import DEVICE, call, gradient, random_datum, train
from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.adapters.peft_files import module_path, write_adapter
from tinkex.engine.messages import CreateRun, Datum, LoraSpec
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training.trainer import Trainer

# PEFT warns that merging a tied unembedding would change the embedding too; nothing is merged.
pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")

EXACT = DEVICE == "cpu"
LOGPROBS = 1e-4 if EXACT else 0.3
GRADIENTS = 1e-4 if EXACT else 0.1

RANKS = (4, 8, 16, 64)
LENGTHS = ((1, 2, 512), (3, 17, 17), (1, 64, 130), (40, 41, 1))


@pytest.fixture(params=list(FAMILIES))
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Trainer]:
    model = save_reference(request.param, tmp_path / "model")
    return model, Trainer(load_decoder(tmp_path / "model", DEVICE))


def test_logprobs_and_gradients_match_in_a_mixed_batch(
    reference: tuple[Any, Trainer], tmp_path: Path
) -> None:
    model, trainer = reference
    rng = np.random.default_rng(3)
    data = {f"r{rank}": [random_datum(rng, n) for n in lengths]
            for rank, lengths in zip(RANKS, LENGTHS, strict=True)}  # fmt: skip
    for rank in RANKS:
        trainer.create_run(CreateRun("op", f"r{rank}", LoraSpec(rank, seed=rank)))
        randomise_b(trainer, f"r{rank}")
    results = train(trainer, *(call(run, *datums) for run, datums in data.items()))
    for (run, datums), result in zip(data.items(), results, strict=True):
        with wrapped(model, trainer.weights(run), tmp_path / run) as adapted:
            expected = [peft_logprobs(adapted, datum) for datum in datums]
            for own, theirs in zip(result.outputs, expected, strict=True):
                close = torch.from_numpy(own["logprobs"]) - theirs.detach()
                assert close.abs().max() < LOGPROBS
            loss = -sum(
                (theirs * torch.from_numpy(np.asarray(datum.inputs["weights"]))).sum()
                for theirs, datum in zip(expected, datums, strict=True)
            )
            loss.backward()
            wanted = peft_gradients(adapted)
        layout = trainer._find(run).adapter.layout
        modules = layout.modules(gradient(trainer, run))
        assert len(modules) * 2 == len(wanted)
        for (layer, module), pair in modules.items():
            for factor, own in zip("AB", pair, strict=True):
                theirs = wanted[f"{module_path(layer, module)}.{factor}"]
                assert (own - theirs).norm() <= GRADIENTS * theirs.norm() + 1e-7, (layer, module)


def randomise_b(trainer: Trainer, run: str) -> None:
    """Fresh adapters have B = 0, which would hide half of the mathematics."""
    adapter = trainer._find(run).adapter
    generator = torch.Generator().manual_seed(1)
    for _, b in adapter.layout.modules(adapter.master).values():
        b.copy_(torch.randn(b.shape, generator=generator) * 0.05)
    adapter.refresh()


@contextlib.contextmanager
def wrapped(model: Any, weights: AdapterWeights, folder: Path) -> Iterator[Any]:
    """The reference model with the adapter loaded from disk, as PEFT loads it."""
    folder.mkdir()
    write_adapter(weights, folder)
    adapted = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
    adapted.eval()
    yield adapted
    adapted.unload()


def peft_logprobs(adapted: Any, datum: Datum) -> torch.Tensor:
    tokens = torch.from_numpy(datum.tokens.astype(np.int64))
    targets = torch.from_numpy(np.asarray(datum.inputs["target_tokens"]))
    logits = adapted(tokens[None]).logits[0]
    found: torch.Tensor = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    return found


def peft_gradients(adapted: Any) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            stem = name.removeprefix("base_model.model.").removesuffix(".default.weight")
            found[stem.replace(".lora_A", ".A").replace(".lora_B", ".B")] = parameter.grad
    return found
