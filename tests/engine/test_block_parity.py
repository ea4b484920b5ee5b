"""Mixtures of experts and other blocks compute what transformers computes, adapters included.

The reference adapter is plain autograd (`support.lora_reference`): PEFT has no such layout.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from support.hf_models import BLOCK_FAMILIES, save_reference
from support.lora_reference import attached
from support.training import DEVICE, call, gradient, random_datum, train
from tinkex.engine.adapters.peft_files import read_adapter, write_adapter
from tinkex.engine.messages import CreateRun, Datum, LoraSpec
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training.trainer import Trainer

EXACT = DEVICE == "cpu"
LOGPROBS = 1e-4 if EXACT else 0.3
GRADIENTS = 1e-4 if EXACT else 0.1

LENGTHS = {4: (1, 2, 127), 8: (3, 17, 17, 63), 24: (64, 65, 1, 131)}
"""By rank: a run's sequences; one token, primes, and a chunk of 64 with its neighbours."""


def randomise_b(trainer: Trainer, run: str) -> None:
    adapter = trainer._find(run).adapter
    generator = torch.Generator().manual_seed(1)
    for _, b in adapter.layout.modules(adapter.master).values():
        b.copy_(torch.randn(b.shape, generator=generator) * 0.05)
    adapter.refresh()


def reference_logprobs(model: torch.nn.Module, datum: Datum) -> torch.Tensor:
    tokens = torch.from_numpy(datum.tokens.astype(np.int64))
    targets = torch.from_numpy(np.asarray(datum.inputs["target_tokens"]))
    logits = model(tokens[None]).logits[0]
    found: torch.Tensor = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    return found


@pytest.mark.parametrize("family", list(BLOCK_FAMILIES))
def test_logprobs_and_gradients_match_in_a_mixed_batch(family: str, tmp_path: Path) -> None:
    model = save_reference(family, tmp_path / "model")
    trainer = Trainer(load_decoder(tmp_path / "model", DEVICE))
    rng = np.random.default_rng(5)
    data = {f"r{rank}": [random_datum(rng, n) for n in LENGTHS[rank]] for rank in LENGTHS}
    for rank in LENGTHS:
        trainer.create_run(CreateRun("op", f"r{rank}", LoraSpec(rank, seed=rank)))
        randomise_b(trainer, f"r{rank}")
    results = train(trainer, *(call(run, *datums) for run, datums in data.items()))
    for (run, datums), result in zip(data.items(), results, strict=True):
        with attached(model, trainer.weights(run)) as leaves:
            expected = [reference_logprobs(model, datum) for datum in datums]
            for own, theirs in zip(result.outputs, expected, strict=True):
                assert np.abs(own["logprobs"] - theirs.detach().numpy()).max() < LOGPROBS
            weighted = [
                (theirs * torch.from_numpy(np.asarray(datum.inputs["weights"]))).sum()
                for theirs, datum in zip(expected, datums, strict=True)
            ]
            (-torch.stack(weighted).sum()).backward()
        modules = trainer._find(run).adapter.layout.modules(gradient(trainer, run))
        assert modules.keys() == leaves.keys()
        for key, pair in modules.items():
            for own, leaf in zip(pair, leaves[key], strict=True):
                assert leaf.grad is not None, key
                apart = (own.cpu() - leaf.grad).norm()
                assert apart <= GRADIENTS * leaf.grad.norm() + 1e-7, key


@pytest.mark.parametrize("family", list(BLOCK_FAMILIES))
def test_an_archive_is_read_back_bit_for_bit(family: str, tmp_path: Path) -> None:
    save_reference(family, tmp_path / "model")
    trainer = Trainer(load_decoder(tmp_path / "model", DEVICE))
    trainer.create_run(CreateRun("op", "run", LoraSpec(4, seed=1)))
    randomise_b(trainer, "run")
    (tmp_path / "adapter").mkdir()
    write_adapter(trainer.weights("run"), tmp_path / "adapter")
    found = read_adapter(tmp_path / "adapter", DEVICE)
    written = trainer.weights("run").factors
    assert found.factors.keys() == written.keys()
    for key, pair in written.items():
        assert all(torch.equal(*both) for both in zip(pair, found.factors[key], strict=True)), key
