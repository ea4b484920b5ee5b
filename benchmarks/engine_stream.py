"""What a residual stream of float32 costs a model of 16 bits, and what it gives, on one GPU.

One after the other in one process, on seeded weights of the Qwen3-8B shape: by how much the
trainer's logprobs of sampled tokens are others than the sampler's, how many tokens a second are
trained, and how many are decoded.

    python benchmarks/engine_stream.py [--small] [--layers N]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from engine_gpu import PAGE_SIZE, RANK, adapter, decode_rate, train_rate
from front_door_gpu import QWEN3_8B, SMALL
from numpy.typing import NDArray
from report import Row, write
from seeded_model import seeded_decoder

from tinkex.engine.messages import (
    CreateRun,
    Datum,
    Done,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    Sample,
    SampleResult,
    SamplingParams,
)
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.families import parse_config
from tinkex.engine.process.building import widen_stream
from tinkex.engine.sampling.limits import SamplerLimits
from tinkex.engine.sampling.model_end import Ending
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.training.trainer import Trainer

SAMPLES = 16
PROMPT = NEW = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="a tiny shape, to try the script")
    parser.add_argument("--layers", type=int, help="only so many of them")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    facts = dict(SMALL if asked.small else QWEN3_8B)
    facts["num_hidden_layers"] = asked.layers or facts["num_hidden_layers"]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    decoder = seeded_decoder(parse_config(facts), device, dtype)
    narrow = measured(decoder, asked.small)
    widen_stream(decoder)
    wide = measured(decoder, asked.small)
    rows = [
        Row(what, value, unit, narrow[what, unit], higher_is_better=unit == "tokens/s")
        for (what, unit), value in wide.items()
    ]
    note = "“The alternative” is the same with the stream rounded to the model's dtype."
    write("engine_stream" + ("_small" if asked.small else ""), "The residual stream", rows, note)


def measured(decoder: Decoder, small: bool) -> dict[tuple[str, str], float]:
    average, most = gap(decoder)
    found = {
        ("trainer against sampler, on average", "nats"): average,
        ("trainer against sampler, at most", "nats"): most,
        ("train 8 × 512", "tokens/s"): train_rate(decoder, 1, 64 if small else 512),
        ("train 8 × 4,096", "tokens/s"): train_rate(decoder, 1, 128 if small else 4096),
        ("decode, batch 32", "tokens/s"): decode_rate(decoder, 32, 0, small)[0],
        ("decode, batch 32, an adapter", "tokens/s"): decode_rate(decoder, 32, 1, small)[0],
    }
    for (what, unit), value in found.items():
        print(what, value, unit, decoder.stream, flush=True)
    return found


def gap(decoder: Decoder) -> tuple[float, float]:
    """Nats between both, of tokens that were sampled with a fresh adapter."""
    drawn = sampled(decoder)
    trainer = Trainer(decoder)
    trainer.create_run(CreateRun("c", "run", LoraSpec(RANK, seed=0)))
    data = tuple(datum(np.concatenate([prompt, result])) for prompt, result, _ in drawn)
    (found,) = trainer.forward_backward(
        [ForwardBackward("f", "run", data, "cross_entropy", forward_only=True)]
    )
    assert isinstance(found, ForwardBackwardResult), found
    gaps = np.concatenate([
        np.abs(output["logprobs"][PROMPT - 1 :] - logprobs)
        for output, (_, _, logprobs) in zip(found.outputs, drawn, strict=True)
    ])  # fmt: skip
    return float(gaps.mean()), float(gaps.max())


Drawn = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]
"""A prompt, what came after it, and its logprobs."""


def sampled(decoder: Decoder) -> list[Drawn]:
    pages = SAMPLES * (-(-(PROMPT + NEW) // PAGE_SIZE) + 1) + 8
    limits = SamplerLimits(
        pages=pages, max_context=PROMPT + NEW + 1, rows=SAMPLES, step_tokens=8192, snapshots=1
    )
    made = adapter(decoder, 0)
    sampler = Sampler(decoder, Ending((), None), limits, lambda _: made)
    sampler.versions.add("w", "0")
    rng, found = np.random.default_rng(1), {}
    vocabulary = decoder.config.vocab_size
    prompts = [rng.integers(0, vocabulary, PROMPT, dtype=np.int64) for _ in range(SAMPLES)]
    for index, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=NEW, seed=index, stop=())
        sampler.submit(Sample(str(index), "w", prompt.astype(np.int32), params))
    while sampler.busy:
        for event in sampler.step():
            assert isinstance(event, Done), event
            assert isinstance(event.result, SampleResult)
            found[event.op] = event.result.sequences[0]
    own = [found[str(index)] for index in range(SAMPLES)]
    return [
        (prompt, np.asarray(one.tokens, np.int64), np.asarray(one.logprobs, np.float32))
        for prompt, one in zip(prompts, own, strict=True)
    ]


def datum(tokens: NDArray[np.int64]) -> Datum:
    weights = np.ones(len(tokens) - 1, np.float32)
    return Datum(tokens[:-1].astype(np.int32), {"target_tokens": tokens[1:], "weights": weights})


if __name__ == "__main__":
    main()
