"""Steady mode on one GPU at the Qwen3-8B shape: whether it keeps its promises, and what it costs.

Products: each of a layer's matrices, by rows and by tiling, against the library, and whether every
tiling finds the same bits. Bits: with adapters of several ranks, one request alone and in company,
its gradients, and the sampler's logprobs against the trainer's, compared to the bit. Rates: tokens
per second of training, decoding and prompts beside the default mode. The engine alone.

Every part ends when its time is over, prints as it goes, and leaves the others alone if it fails.

    python benchmarks/engine_steady.py [--small] [--parts products,bits,rates] [--seconds 240]
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Iterator

import numpy as np
import torch
from engine_float8 import COPIES, SHAPES, cleared, graph_us, rates
from engine_gpu import data
from front_door_gpu import QWEN3_8B, SMALL
from gpu_families import say
from numpy.typing import NDArray
from report import Row, write
from seeded_model import seeded_decoder
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.messages import (
    CreateRun,
    Datum,
    Done,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    OptimStep,
    Sample,
    SampleResult,
    SamplingParams,
)
from tinkex.engine.model.decoder import Decoder, Weights
from tinkex.engine.model.families import parse_config
from tinkex.engine.model.matrices.steady import Steady, settle
from tinkex.engine.process.placement import training_limits
from tinkex.engine.sampling.limits import SamplerLimits
from tinkex.engine.sampling.model_end import Ending
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.settings import WorkerConfig
from tinkex.engine.training.trainer import Trainer

RANKS = {"own": 32, "first": 8, "second": 64}
TRIED_ROWS = (1, 16, 32, 128, 512, 8192)
PAGES = 4000
"""For all sequences of a step: 9 GB at the 8B shape."""

ADAM = {
    "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}  # fmt: skip


class Clock:
    """Time of one part."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._end


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a tiny shape, to try the script")
    parser.add_argument("--parts", default="products,bits,rates")
    parser.add_argument("--seconds", type=float, default=240.0, help="the most that a part takes")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rows: list[Row] = []
    usual: Decoder | None = None
    for part in asked.parts.split(","):
        clock = Clock(asked.seconds)
        say(f"part: {part}")
        try:
            if part == "products":
                for name, shape in SHAPES.items():
                    rows += products(name, shape, device, clock)
                continue
            if usual is None:
                facts = SMALL if asked.small else QWEN3_8B
                usual = seeded_decoder(parse_config(facts), device, dtype)
            steady = made_steady(usual)
            if part == "bits":
                rows += shown(bits(steady, asked.small))
            else:
                rows += shown(cost(usual, steady, asked.small, clock))
        except Exception:
            say(f"part {part} failed:\n{traceback.format_exc()}")
    note = (
        "“The alternative” is the default mode, or the vendor's library, in the same run. Rows "
        "that count differences must be 0. Ranks 32, 8 and 64, seeded weights, the engine alone."
    )
    if rows:
        write("engine_steady" + ("_small" if asked.small else ""), "Steady mode", rows, note)


def shown(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        say(" | ".join(row.cells()))
        yield row


def made_steady(decoder: Decoder) -> Decoder:
    """The same tensors, multiplied in steady mode, the ways to do so tried as an engine does."""
    form, weights = Steady(), decoder.weights
    assert isinstance(weights.unembed, Tensor)
    layers = tuple(form.layer(layer) for layer in weights.layers)
    head = form.head(weights.unembed)
    made = Weights(weights.embed, layers, weights.final_norm, head)
    if decoder.device.type == "cuda":
        begun = time.perf_counter()
        settle(made)
        say(f"the ways to multiply, tried in {time.perf_counter() - begun:.1f} s: {trusted()}")
    return Decoder(decoder.config, made)


def trusted() -> dict[str, list[int]]:
    """Numbers of rows that are left to the library, by the matrix."""
    from tinkex.engine.kernels.steady.library import _trusted

    return {
        f"{key[0][0]}×{key[0][1]} {str(key[3])[6:]}": sorted(rows) for key, rows in _trusted.items()
    }


# ---- products


def products(
    name: str, shape: tuple[int, int], device: torch.device, clock: Clock
) -> Iterator[Row]:
    """Microseconds by rows, in every tiling that takes so many; bits against the smallest's."""
    from tinkex.engine.kernels.steady.product import Tiling, product, tiling_of

    small = ((16, 64, 8), (16, 128, 5), (32, 64, 7), (32, 128, 4), (64, 64, 6), (128, 64, 5))
    few = [Tiling(rows, 64, depth, 4, stages) for rows, depth, stages in small]
    many = [Tiling(128, 128, 64, 8, 3), Tiling(128, 128, 64, 8, 4), Tiling(256, 128, 64, 8, 3),
            Tiling(128, 256, 64, 8, 3), Tiling(128, 128, 64, 4, 4)]  # fmt: skip
    weights = [torch.randn(shape, device=device).bfloat16() / shape[1] ** 0.5
               for _ in range(COPIES)]  # fmt: skip
    for rows in TRIED_ROWS:
        if clock.is_over:
            say(f"{name}: no time left before {rows} rows")
            return
        x = torch.randn(rows, shape[1], device=device, dtype=torch.bfloat16)
        wanted = product(x[:16].contiguous(), weights[0], tiling=few[0])
        library = graph_us(lambda at, x=x: F.linear(x, weights[at]))
        chosen = tiling_of(rows, shape[0])
        for tiling in [chosen, *(t for t in (few if rows <= 512 else many) if t != chosen)]:
            if tiling.rows > max(16, 2 * rows):
                continue

            def work(at: int, x: Tensor = x, tiling: Tiling = tiling) -> Tensor:
                return product(x, weights[at], tiling=tiling)

            try:
                off = differing(work(0)[:16], wanted)
                took = graph_us(work)
            except Exception as error:
                say(f"{name} {rows} rows {tiling}: {type(error).__name__} {str(error)[:100]}")
                continue
            mark = " (chosen)" if tiling == chosen else ""
            say(f"{name} {rows} rows {tiling}{mark}: {took:.1f} us, library {library:.1f}, "
                f"{off} elements differ")  # fmt: skip
            if tiling == chosen:
                yield Row(f"{name}, {rows} rows", took, "us", library)
                yield Row(f"{name}, {rows} rows: elements that differ", off, "")


def differing(found: Tensor | NDArray[np.float32], wanted: Tensor | NDArray[np.float32]) -> int:
    one, other = torch.as_tensor(found), torch.as_tensor(wanted)
    assert one.shape == other.shape, (one.shape, other.shape)
    # NaN stands for "none" in logprobs of prompts.
    return int(((one != other) & ~(one.isnan() & other.isnan())).sum())


# ---- bits


def bits(decoder: Decoder, small: bool) -> Iterator[Row]:
    short, long = (40, 150) if small else (400, 3000)
    alone, among = trained(decoder, short, ("own",)), trained(decoder, short, tuple(RANKS))
    for what, kind in (("weights", 0), ("gradient", 1)):
        off = differing(state(alone)[kind], state(among)[kind])
        yield Row(f"{what} of a run alone and beside two others: numbers that differ", off, "")
    del alone
    cleared()
    rng = np.random.default_rng(3)
    vocab = decoder.config.vocab_size
    prompts = [rng.integers(0, vocab, length).astype(np.int32) for length in (long, short, 5)]
    own = [sample(f"own{i}", "own", prompt, 32, i) for i, prompt in enumerate(prompts)]
    others = [
        sample(f"o{i}", ("first", "second", "")[i % 3],
               rng.integers(0, vocab, 7 + 53 * i % short).astype(np.int32), 40, 100 + i)
        for i in range(12 if small else 45)
    ]  # fmt: skip
    sampler = serving(decoder, among, long)
    apart = [answered(sampler, [command])[command.op] for command in own]
    del sampler
    cleared()
    together = answered(serving(decoder, among, long), [*others[:20], *own, *others[20:]])
    for command, one in zip(own, apart, strict=True):
        what = f"a prompt of {len(command.prompt):,} and 32 tokens"
        other = together[command.op]
        off = differing(logprobs(one), logprobs(other))
        off += int((one.sequences[0].tokens != other.sequences[0].tokens).sum())
        yield Row(f"{what}, alone and among {len(others)}: what differs", off, "")
        theirs = scored(among, command.prompt, one)
        off = differing(theirs, logprobs(one)[1:])
        yield Row(f"{what}, trainer and sampler: logprobs that differ", off, "")
        far = float(np.nanmax(np.abs(theirs - logprobs(one)[1:])))
        yield Row(f"{what}, trainer and sampler: largest difference", far, "nats")


def trained(decoder: Decoder, length: int, runs: tuple[str, ...]) -> Trainer:
    """Two steps of each run, the second's gradient still there; each run's data are its own."""
    trainer = Trainer(decoder, training_limits(WorkerConfig(""), decoder))
    for run in runs:
        trainer.create_run(CreateRun(run, run, LoraSpec(RANKS[run], seed=RANKS[run])))
    for step in range(2):
        calls = []
        for run in reversed(runs):
            rng = np.random.default_rng(RANKS[run] + step)
            batch = data(rng, decoder, 2, length) + data(rng, decoder, 1, 17)
            calls.append(ForwardBackward(run, run, batch, "cross_entropy"))
        for outcome in trainer.forward_backward(calls):
            assert isinstance(outcome, ForwardBackwardResult), outcome
        for run in runs if step == 0 else ():
            trainer.optim_step(OptimStep(run, run, "adamw", ADAM))
    return trainer


def state(trainer: Trainer) -> tuple[Tensor, Tensor]:
    """Weights and gathered gradient of the run `own`."""
    run = trainer.residency.get("own")
    assert run.gradient is not None
    return run.adapter.master, run.gradient


def serving(decoder: Decoder, trainer: Trainer, longest: int) -> Sampler:
    limits = SamplerLimits(pages=PAGES, max_context=longest + 64, rows=64, step_tokens=1000)
    sampler = Sampler(decoder, Ending((), None), limits, no_files)
    for run in RANKS:
        sampler.versions.serve(run, "nowhere", trainer.weights(run))
    return sampler


def no_files(folder: str) -> AdapterWeights:
    raise AssertionError(f"{folder}: adapters of this benchmark come from a trainer")


def sample(op: str, weights: str, prompt: NDArray[np.int32], new: int, seed: int) -> Sample:
    params = SamplingParams(max_tokens=new, seed=seed, stop=())
    return Sample(op, weights, prompt, params, prompt_logprobs=True)


def answered(sampler: Sampler, commands: list[Sample]) -> dict[str, SampleResult]:
    for command in commands:
        sampler.submit(command)
    found: dict[str, SampleResult] = {}
    while sampler.busy:
        for event in sampler.step():
            assert isinstance(event, Done), event
            assert isinstance(event.result, SampleResult)
            found[event.op] = event.result
    return found


def logprobs(result: SampleResult) -> NDArray[np.float32]:
    assert result.prompt_logprobs is not None
    return np.concatenate([result.prompt_logprobs, result.sequences[0].logprobs])


def scored(
    trainer: Trainer, prompt: NDArray[np.int32], result: SampleResult
) -> NDArray[np.float32]:
    """The trainer's logprobs of a prompt, its first token left out, and its sample."""
    whole = np.concatenate([prompt, result.sequences[0].tokens]).astype(np.int64)
    given = {"target_tokens": whole[1:], "weights": np.ones(len(whole) - 1, np.float32)}
    batch = (Datum(whole[:-1].astype(np.int32), given),)
    asked = ForwardBackward("f", "own", batch, "cross_entropy", forward_only=True)
    (found,) = trainer.forward_backward([asked])
    assert isinstance(found, ForwardBackwardResult), found
    return found.outputs[0]["logprobs"]


# ---- rates


def cost(usual: Decoder, steady: Decoder, small: bool, clock: Clock) -> Iterator[Row]:
    before = dict(timed(usual, small))
    if clock.is_over:
        say("no time left for the steady mode's rates; give --seconds more")
        return
    for what, value in timed(steady, small):
        share = 100 * (1 - value / before[what])
        say(f"{what}: costs {share:.1f} % (target: 15 % at most)")
        yield Row(what, value, "tokens/s", before[what], higher_is_better=True, target="≥ 0.85×")


def timed(decoder: Decoder, small: bool) -> list[tuple[str, float]]:
    cleared()
    begun = time.perf_counter()
    found = rates(decoder, small)
    say(f"{'steady' if decoder.steady else 'default'} mode measured in "
        f"{time.perf_counter() - begun:.0f} s: {found}")  # fmt: skip
    return found


if __name__ == "__main__":
    main()
