"""A residual stream of float32 in a model of 16 bits: nearer to the whole in float32.

On a GPU models are bfloat16. Here it is float16, which every CPU multiplies.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from support.training import call, gradient, random_datum, train
from tinkex.engine.errors import ModelError
from tinkex.engine.messages import CreateRun, LoraSpec
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.process.building import widen_stream
from tinkex.engine.training.trainer import Trainer

DEPTH = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    made = tmp_path_factory.mktemp("deep")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=DEPTH,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=64**-0.5,
    )  # fmt: skip
    LlamaForCausalLM(config).half().save_pretrained(made)
    return made


def trained(decoder: Decoder) -> tuple[np.ndarray, torch.Tensor]:
    """Logprobs and the gradient of one call."""
    trainer, rng = Trainer(decoder), np.random.default_rng(0)
    trainer.create_run(CreateRun("c", "run", LoraSpec(8, seed=1)))
    (result,) = train(trainer, call("run", *(random_datum(rng, 60) for _ in range(8))))
    logprobs = np.concatenate([output["logprobs"] for output in result.outputs])
    return logprobs, gradient(trainer, "run")


def test_a_wide_stream_is_nearer_to_float32(folder: Path) -> None:
    wanted, slope = trained(load_decoder(folder, "cpu", torch.float32))
    decoder = load_decoder(folder, "cpu", torch.float16)
    narrow, narrow_slope = trained(decoder)
    widen_stream(decoder)
    wide, wide_slope = trained(decoder)
    assert np.abs(wide - wanted).mean() < 0.9 * np.abs(narrow - wanted).mean()
    assert (wide_slope - slope).norm() < 0.9 * (narrow_slope - slope).norm()


def test_a_wide_stream_changes_nothing_in_a_model_of_float32(folder: Path) -> None:
    decoder = load_decoder(folder, "cpu", torch.float32)
    before, slope = trained(decoder)
    widen_stream(decoder)
    after, slope_after = trained(decoder)
    assert np.array_equal(before, after)
    assert torch.equal(slope, slope_after)


def test_what_blocks_are_given_stays_in_the_models_own_dtype(folder: Path) -> None:
    decoder = load_decoder(folder, "cpu", torch.float16)
    widen_stream(decoder)
    seen: set[tuple[torch.dtype, torch.dtype]] = set()
    block = decoder._block

    def noted(index, kind, x, norms, run):  # type: ignore[no-untyped-def]  # as `_block`
        out = block(index, kind, x, norms, run)
        seen.add((x.dtype, out.dtype))
        return out

    decoder._block = noted  # type: ignore[method-assign]  # watched
    trained(decoder)
    assert seen == {(torch.float32, torch.float32)}
    assert decoder.dtype == torch.float16


def test_a_wide_stream_is_refused_in_steady_mode(folder: Path) -> None:
    decoder = load_decoder(folder, "cpu", torch.float32)
    decoder.steady = True
    with pytest.raises(ModelError, match="wide_stream: with --steady"):
        widen_stream(decoder)
