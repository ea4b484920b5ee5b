"""Steady mode, trainer and sampler as they are: the same bits alone, in company and in each other.

On a machine without a GPU `test_interpreted.py` runs them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from support.interpreted import INTERPRETED, here
from support.replayed_steps import replay_steps
from support.sampling import DEVICE, make_sampler, prompt_of, results_of, sample
from support.training import adam_step, call, random_datum, train
from tinkex.engine.messages import CreateRun, Datum, LoraSpec, SampleResult
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training.trainer import Trainer

if INTERPRETED:
    from support.ordered_dot import ordered_dots  # noqa: F401 - a fixture

LAYER = "model.layers.0"
VOCAB = 128
PROMPT = 17


@pytest.fixture
def decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    return steady_decoder(save_small(tmp_path), monkeypatch)


def save_small(folder: Path) -> Path:
    """A Llama of one layer: interpreted, every program takes a millisecond."""
    draw, shapes = torch.Generator().manual_seed(0), {
        "model.embed_tokens": (VOCAB, 32), "lm_head": (VOCAB, 32), "model.norm": (32,),
        f"{LAYER}.input_layernorm": (32,), f"{LAYER}.post_attention_layernorm": (32,),
        f"{LAYER}.self_attn.q_proj": (64, 32), f"{LAYER}.self_attn.k_proj": (32, 32),
        f"{LAYER}.self_attn.v_proj": (32, 32), f"{LAYER}.self_attn.o_proj": (32, 64),
        f"{LAYER}.mlp.gate_proj": (40, 32), f"{LAYER}.mlp.up_proj": (40, 32),
        f"{LAYER}.mlp.down_proj": (32, 40),
    }  # fmt: skip
    tensors = {
        f"{name}.weight": torch.randn(shape, generator=draw) * 0.3 + float(len(shape) == 1)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 1,
        "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "rope_theta": 1e4,
        "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def steady_decoder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """Made of kernels in all its parts, also where they are interpreted."""
    from tinkex.engine.model.matrices.steady import Steady

    if INTERPRETED:
        for name, module in list(sys.modules.items()):
            # Passes would be captured.
            ours = name.startswith("tinkex.engine.") and not name.endswith(".training.passes")
            if ours and "runs_triton" in vars(module):
                monkeypatch.setattr(module, "runs_triton", lambda x: True)
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    return load_decoder(folder, DEVICE, dtype, base=Steady())


def trained(decoder: Decoder, company: bool) -> Trainer:
    """A step of a run of rank 5, alone or beside another's call."""
    trainer = Trainer(decoder)
    for name, rank in (("own", 5), ("other", 16)) if company else (("own", 5),):
        trainer.create_run(CreateRun("op", name, LoraSpec(rank, seed=rank)))
    rng = np.random.default_rng(0)
    calls = [call("own", random_datum(rng, 14), random_datum(rng, 2))]
    if company:
        calls.insert(0, call("other", random_datum(rng, 17)))
    train(trainer, *calls)
    trainer.optim_step(adam_step("own"))
    return trainer


def trainers_logprobs(trainer: Trainer, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    datum = Datum(
        tokens[:-1].astype(np.int32),
        {"target_tokens": tokens[1:], "weights": np.ones(len(tokens) - 1, np.float32)},
    )
    rng = np.random.default_rng(5)
    (found,) = train(trainer, call("own", random_datum(rng, 3), datum, forward_only=True))
    return found.outputs[1]["logprobs"]


def sampled(
    decoder: Decoder, trainer: Trainer, company: bool, captured: pytest.MonkeyPatch | None = None
) -> SampleResult:
    sampler: Any = make_sampler(decoder, step_tokens=16 if company else 256)
    if captured is not None and INTERPRETED:
        replay_steps(sampler, captured)
    sampler.versions.serve("own", "nowhere", trainer.weights("own"))
    own = sample(
        "own",
        prompt_of(1, PROMPT),
        weights="own",
        seed=3,
        max_tokens=2,
        asks={"prompt_logprobs": True},
    )
    if not company:
        (result,) = results_of(sampler, own)
        return result
    sampler.versions.serve("other", "nowhere", trainer.weights("other"))
    other = sample("other", prompt_of(2, 4), weights="other", seed=1, max_tokens=3, top_p=0.8)
    result = results_of(sampler, other, own)[1]
    # Some steps were captured ones, with adapters.
    assert any(steady for _, _, steady in sampler._graphs._found)
    return result


@here
def test_trainer_and_sampler_give_one_request_the_same_bits_in_any_company(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, among = trained(decoder, company=False), trained(decoder, company=True)
    own, same = alone.weights("own"), among.weights("own")
    for key, pair in own.factors.items():
        for found, wanted in zip(same.factors[key], pair, strict=True):
            assert torch.equal(found, wanted), key
    (first, second) = sampled(decoder, alone, False), sampled(decoder, among, True, monkeypatch)
    assert first.prompt_logprobs is not None
    assert second.prompt_logprobs is not None
    one, other = first.sequences[0], second.sequences[0]
    assert one.tokens.tolist() == other.tokens.tolist()
    np.testing.assert_array_equal(first.prompt_logprobs, second.prompt_logprobs)
    np.testing.assert_array_equal(one.logprobs, other.logprobs)
    tokens = np.concatenate([prompt_of(1, PROMPT), one.tokens]).astype(np.int64)
    told = np.concatenate([first.prompt_logprobs[1:], one.logprobs])
    np.testing.assert_array_equal(trainers_logprobs(among, tokens), told)
