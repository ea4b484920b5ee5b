"""Experts that stay in MXFP4 give the bits of widened ones, in the memory of packed ones."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.hf_models import pack_experts, save_packed_gpt_oss
from support.sampling import make_sampler, prompt_of, results_of, sample, tiny_folder, tokens_of
from support.training import adam_step, call, gradient, random_datum, train
from tinkex.engine.collectives import Ranks
from tinkex.engine.errors import ModelError
from tinkex.engine.messages import CreateRun, LoraSpec
from tinkex.engine.model.blocks.experts import Experts
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.headers import read_json
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.model.matrices.packed_experts import PackedExperts
from tinkex.engine.model.sizes import sizes_of_raw
from tinkex.engine.training.trainer import Trainer

BF16 = torch.bfloat16


@pytest.fixture(params=["published layout", "tinkex/tiny-gpt-oss"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "published layout":
        return save_packed_gpt_oss(tmp_path)
    copied = tmp_path / "model"
    shutil.copytree(tiny_folder(request.param), copied)
    return pack_experts(copied)


def stacks(decoder: Decoder) -> list[object]:
    blocks = [layer.mlp for layer in decoder.weights.layers]
    return [
        s for block in blocks if isinstance(block, Experts) for s in (block.gate_up, block.down)
    ]


def trained(
    decoder: Decoder, lengths: Sequence[int]
) -> tuple[list[NDArray[np.float32]], list[torch.Tensor]]:
    """Logprobs and gradients of two runs in one batch, twice, with a step between."""
    trainer = Trainer(decoder)
    draw = np.random.default_rng(0)
    calls = []
    for run in ("a", "b"):
        trainer.create_run(CreateRun("op", run, LoraSpec(4, seed=ord(run))))
        calls.append(call(run, *[random_datum(draw, length) for length in lengths]))
    logprobs, gradients = [], []
    for _ in range(2):
        for result in train(trainer, *calls):
            logprobs += [np.asarray(output["logprobs"]) for output in result.outputs]
        for run in ("a", "b"):
            gradients.append(gradient(trainer, run).clone())
            trainer.optim_step(adam_step(run))
    return logprobs, gradients


@pytest.mark.parametrize("lengths", [(1,), (7, 1, 64), (211, 30)])
def test_training_on_packed_experts_has_the_bits_of_widened_ones(
    folder: Path, lengths: Sequence[int]
) -> None:
    wide, packed = load_decoder(folder), load_decoder(folder, packed=True)
    assert all(isinstance(stack, torch.Tensor) for stack in stacks(wide))
    assert all(isinstance(stack, PackedExperts) for stack in stacks(packed))
    theirs, ours = trained(wide, lengths), trained(packed, lengths)
    assert all(map(np.array_equal, theirs[0], ours[0]))
    assert all(map(torch.equal, theirs[1], ours[1]))
    assert lengths == (1,) or all(bool(found.any()) for found in ours[1])


def test_sampling_from_packed_experts_has_the_bits_of_widened_ones(folder: Path) -> None:
    commands = [
        sample(f"s{i}", prompt_of(i, 5 + 20 * i), num_samples=2, max_tokens=24, seed=i)
        for i in range(3)
    ]
    told = []
    for packed in (False, True):
        sampler = make_sampler(load_decoder(folder, packed=packed), tiny_folder())
        results = results_of(sampler, *commands)
        logprobs = [s.logprobs.tolist() for result in results for s in result.sequences]
        told.append((list(map(tokens_of, results)), logprobs))
    assert told[0] == told[1]


def test_experts_stay_packed_where_widened_ones_do_not_fit_or_where_it_is_asked(
    folder: Path,
) -> None:
    sizes = sizes_of_raw(read_json(folder / "config.json"))
    wide, packed = sizes.weights(4), sizes.weights(4, packed=True)
    assert load_decoder(folder).nbytes == pytest.approx(wide, rel=1e-3)
    assert load_decoder(folder, packed=True).nbytes == pytest.approx(packed, rel=1e-3)
    for asked, room, kept in ((None, wide, False), (None, wide - 1, True), (False, 0, False)):
        found = stacks(load_decoder(folder, packed=asked, room=room))
        assert [isinstance(stack, PackedExperts) for stack in found] == [kept] * len(found)


def test_a_model_without_mxfp4_cannot_be_asked_to_stay_packed() -> None:
    for model in ("tinkex/tiny-llama", "tinkex/tiny-gpt-oss"):
        with pytest.raises(ModelError, match="packed_experts: 1 needs experts in MXFP4"):
            load_decoder(tiny_folder(model), packed=True)
        load_decoder(tiny_folder(model), packed=None, room=0)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_keeps_its_own_experts_packed(folder: Path, rank: int) -> None:
    wide, packed = (
        stacks(load_decoder(folder, ranks=Ranks(rank, 2), whole_experts=True, packed=packed))
        for packed in (False, True)
    )
    for one, other in zip(wide, packed, strict=True):
        assert isinstance(one, torch.Tensor)
        assert isinstance(other, PackedExperts)
        assert torch.equal(one, other.widened())


def test_packed_experts_widen_to_the_models_type(folder: Path) -> None:
    wide = stacks(load_decoder(folder, dtype=BF16))
    packed = stacks(load_decoder(folder, dtype=BF16, packed=True))
    for one, other in zip(wide, packed, strict=True):
        assert isinstance(one, torch.Tensor)
        assert isinstance(other, PackedExperts)
        assert torch.equal(one, other.widened())
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
