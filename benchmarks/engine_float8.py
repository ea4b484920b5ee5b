"""FP8 base weights on one GPU at the Qwen3-8B shape: what they cost in digits and bring in time.

Products: each of a layer's matrices, by rows, in bfloat16 and in float8 every way it can be made.
Models: bfloat16, fp8-weights and fp8 after one another, the same seeded weights: how far logprobs
of the same tokens are from bfloat16's, how far trainer and sampler are from each other, tokens per
second of training, decoding and prompts. The engine alone, one rank-32 adapter.

    python benchmarks/engine_float8.py [--small] [--parts products,models]
        [--matrices o,down] [--bases auto,fp8]
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable

import numpy as np
import torch
from engine_gpu import RANK, data, median_seconds, train_rate
from front_door_gpu import QWEN3_8B, SMALL
from gpu_families import adapter, say
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
    Sample,
    SampleResult,
    SamplingParams,
    Sequence,
)
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.families import parse_config
from tinkex.engine.model.matrices.float8 import Float8, rounded
from tinkex.engine.process.placement import training_limits
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE
from tinkex.engine.sampling.limits import SamplerLimits
from tinkex.engine.sampling.model_end import Ending
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.settings import WorkerConfig
from tinkex.engine.training.trainer import Trainer

SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (24576, 4096), "down": (4096, 12288)}
ROWS = (1, 32, 64, 128, 256, 512, 4096)
BASES = {"auto": None, "fp8-weights": Float8(narrow=False), "fp8": Float8(narrow=True)}
COPIES = 6
"""Of a matrix, used in turn: one alone would stay in the card's cache."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a tiny shape, to try the script")
    parser.add_argument("--parts", default="products,models")
    parser.add_argument("--matrices", default=",".join(SHAPES), help="whose products")
    parser.add_argument("--bases", default=",".join(BASES), help="which models")
    asked = parser.parse_args()
    parts = asked.parts.split(",")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows: list[Row] = []
    if "products" in parts:
        for name in asked.matrices.split(","):
            products(name, SHAPES[name], device)
    if "models" in parts:
        rows = models(
            SMALL if asked.small else QWEN3_8B, device, asked.small, asked.bases.split(",")
        )
        note = (
            "“The alternative” is the same engine with its base in bfloat16, in the same run. "
            f"Rank {RANK}, one adapter, seeded weights, the engine alone."
        )
        write("engine_float8" + ("_small" if asked.small else ""), "FP8 base weights", rows, note)


# ---- products


def products(name: str, shape: tuple[int, int], device: torch.device) -> None:
    """Microseconds of one product, by rows and by the way it is made."""
    from tinkex.engine.kernels import float8 as kernel

    wide = [torch.randn(shape, device=device).bfloat16() / shape[1] ** 0.5 for _ in range(COPIES)]
    narrow = [rounded(each) for each in wide]
    counts = kernel.counters(shape[0], device)
    for rows in ROWS:
        x = torch.randn(rows, shape[1], device=device, dtype=torch.bfloat16)
        (xq, xs), both = (each[0] for each in kernel.narrowed(x, 1)), kernel.narrowed(x, 2)
        exact = x.float() @ (narrow[0][0].float() * narrow[0][1]).T
        exact8 = (xq.float() * xs) @ (narrow[0][0].float() * narrow[0][1]).T

        def few(at: int, both: tuple[Tensor, Tensor] = both) -> Tensor:
            return kernel.few(*both, *narrow[at], None, None, counts, torch.bfloat16)

        def few8(at: int, xq: Tensor = xq, xs: Tensor = xs) -> Tensor:
            return kernel.few(xq[None], xs[None], *narrow[at], None, None, counts, torch.bfloat16)

        def library(at: int, xq: Tensor = xq, xs: Tensor = xs) -> Tensor:
            values, scales = narrow[at]
            return torch._scaled_mm(
                xq, values.T, xs, scales.T, out_dtype=torch.bfloat16, use_fast_accum=True
            )

        def careful(at: int, xq: Tensor = xq, xs: Tensor = xs) -> Tensor:
            values, scales = narrow[at]
            return torch._scaled_mm(xq, values.T, xs, scales.T, out_dtype=torch.bfloat16)

        ways: dict[str, tuple[Callable[[int], object], Tensor | None]] = {
            "bf16": (lambda at, x=x: F.linear(x, wide[at]), None),
            "scaled_mm fast": (library, exact8),
            "scaled_mm": (careful, exact8),
            "narrow rows": (lambda at, x=x: kernel.narrowed(x, 1), None),
        }
        if rows <= 512:
            ways |= {"few": (few, exact), "few8": (few8, exact8)}
        if rows == 1:
            ways["widen"] = (lambda at: kernel.widened(*narrow[at], torch.bfloat16), None)
        said = []
        for way, (work, wanted) in ways.items():
            try:
                off = ""
                if wanted is not None:
                    found = work(0)
                    assert isinstance(found, Tensor)
                    gap = float((found.float() - wanted).norm() / wanted.norm())
                    off = f" (off {gap:.1e})"
                said.append(f"{way} {graph_us(work):.1f}{off}")
            except Exception as error:
                said.append(f"{way}: {type(error).__name__} {str(error)[:120]}")
        say(f"{name} {rows} rows, us: " + ", ".join(said))


def graph_us(work: Callable[[int], object]) -> float:
    """Microseconds of one call, from replays of a graph with one for every copy."""
    for at in range(COPIES):
        work(at)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(COPIES):
            work(at)
    seconds = median_seconds(graph.replay, torch.device("cuda"), repeats=20)
    return seconds / COPIES * 1e6


# ---- models


def models(
    facts: dict[str, object], device: torch.device, small: bool, asked: list[str]
) -> list[Row]:
    rows: list[Row] = []
    before: dict[str, float] = {}
    first: NDArray[np.float32] | None = None
    bases = {name: BASES[name] for name in asked if device.type == "cuda" or not BASES[name]}
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for name, base in bases.items():
        begun = time.perf_counter()
        decoder = seeded_decoder(parse_config(facts), device, dtype, base)
        say(f"{name}: {decoder.nbytes / 1e9:.1f} GB after {time.perf_counter() - begun:.1f} s")
        rows.append(Row(f"{name}: the model's memory", decoder.nbytes / 1e9, "GB"))
        found = logprobs_of(decoder, small)
        if first is None:
            first = found
        else:
            off = np.abs(found - first)
            rows.append(Row(f"{name}: logprobs against bfloat16's, mean", off.mean(), "nats"))
            rows.append(Row(f"{name}: the same, largest", off.max(), "nats"))
        for what, value in gap(decoder, small).items():
            rows.append(Row(f"{name}: trainer against sampler, {what}", value, "nats"))
        cleared()  # limits follow what is free
        for what, value in rates(decoder, small):
            rows.append(Row(f"{name}: {what}", value, "tokens/s", before.get(what), True))
            before.setdefault(what, value)
        for row in rows:
            say(" | ".join(row.cells()))
        del decoder
        cleared()
    return rows


def cleared() -> None:
    """Samplers and trainers hold each other: without this their memory stays taken."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def logprobs_of(decoder: Decoder, small: bool) -> NDArray[np.float32]:
    """Of 4 × 512 tokens."""
    drawn = data(np.random.default_rng(5), decoder, 4, 64 if small else 512)
    return np.concatenate(scored(decoder, drawn))


def scored(decoder: Decoder, batch: tuple[Datum, ...]) -> list[NDArray[np.float32]]:
    """Logprobs by a trainer whose adapter adds nothing yet."""
    trainer = Trainer(decoder, training_limits(WorkerConfig(""), decoder))
    trainer.create_run(CreateRun("c", "run", LoraSpec(RANK, seed=0)))
    asked = ForwardBackward("f", "run", batch, "cross_entropy", forward_only=True)
    (result,) = trainer.forward_backward([asked])
    assert isinstance(result, ForwardBackwardResult), result
    return [each["logprobs"] for each in result.outputs]


def gap(decoder: Decoder, small: bool) -> dict[str, float]:
    """Of 32 samples of 128 tokens, scored by the trainer; no adapter in either."""
    prompt, new, count = (16, 16, 8) if small else (128, 128, 32)
    rng = np.random.default_rng(7)
    prompts = [rng.integers(0, decoder.config.vocab_size, prompt).astype(np.int32)
               for _ in range(count)]  # fmt: skip
    sampler = make_sampler(decoder, count, prompt + new, 8192)
    drawn = sampled(sampler, prompts, "", new)
    batch = []
    for asked, got in zip(prompts, drawn, strict=True):
        whole = np.concatenate([asked, got.tokens]).astype(np.int64)
        weights = np.ones(len(whole) - 1, np.float32)
        batch.append(
            Datum(whole[:-1].astype(np.int32), {"target_tokens": whole[1:], "weights": weights})
        )
    theirs = [each[prompt - 1 :] for each in scored(decoder, tuple(batch))]
    off = np.abs(np.concatenate(theirs) - np.concatenate([got.logprobs for got in drawn]))
    return {"mean": float(off.mean()), "largest": float(off.max())}


def rates(decoder: Decoder, small: bool) -> list[tuple[str, float]]:
    found = [("training 8×512", train_rate(decoder, 1, 64 if small else 512))]
    made = adapter(decoder)
    for count in (1, 32, 128):
        sampler = make_sampler(decoder, count, 256, 4096, made)
        rng = np.random.default_rng(1)
        took = []
        for _ in range(3):
            prompts = [rng.integers(0, decoder.config.vocab_size, 128).astype(np.int32)
                       for _ in range(count)]  # fmt: skip
            begun = time.perf_counter()
            got = sampled(sampler, prompts, "tuned", 128)
            took.append(time.perf_counter() - begun)
            assert sum(len(each.tokens) for each in got) == count * 128
        found.append((f"{count} samples at once, 128 + 128", count * 128 / min(took)))
    count, length = (2, 256) if small else (8, 8192)
    sampler = make_sampler(decoder, count, length + 1, 4096, made)
    took = []
    for _ in range(2):
        prompts = [rng.integers(0, decoder.config.vocab_size, length).astype(np.int32)
                   for _ in range(count)]  # fmt: skip
        begun = time.perf_counter()
        sampled(sampler, prompts, "tuned", 1)
        took.append(time.perf_counter() - begun)
    found.append((f"{count} prompts of {length:,}", count * length / min(took)))
    return found


def make_sampler(
    decoder: Decoder,
    rows: int,
    context: int,
    step_tokens: int,
    made: AdapterWeights | None = None,
) -> Sampler:
    pages = rows * 2 * -(-(context + PAGE_SIZE) // PAGE_SIZE) + 8
    limits = SamplerLimits(pages=pages, max_context=context + 1, rows=rows, step_tokens=step_tokens)

    def read(folder: str) -> AdapterWeights:
        assert made is not None
        return made

    sampler = Sampler(decoder, Ending((), None), limits, read)
    if made is not None:
        sampler.versions.add("tuned", "tuned")
    return sampler


def sampled(
    sampler: Sampler, prompts: list[NDArray[np.int32]], weights: str, new: int
) -> list[Sequence]:
    for index, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=new, seed=index, stop=())
        sampler.submit(Sample(f"{index}", weights, prompt, params))
    found: dict[str, Sequence] = {}
    while len(found) < len(prompts):
        for event in sampler.step():
            if isinstance(event, Done):
                assert isinstance(event.result, SampleResult), event.result
                found[event.op] = event.result.sequences[0]
    return [found[str(index)] for index in range(len(prompts))]


if __name__ == "__main__":
    main()
