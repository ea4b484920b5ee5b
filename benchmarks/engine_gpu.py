"""The engine on one GPU at the shape of an 8B model, in bf16, with weights drawn at random.

Training: tokens per second of a rank-32 step over eight packed sequences, optimizer included, for
one run and for eight runs in one batch, against the card's own matrix rate measured in the same
run. Decoding: tokens per second at several batch sizes, with no adapter, one, and 32, against the
time one read of the weights and the cache takes at the card's own copy bandwidth.

    python benchmarks/engine_gpu.py [--small] [--only train|decode]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from report import Row, write
from seeded_model import seeded_decoder

from tinkex.engine.adapters.layout import AdapterLayout, AdapterWeights
from tinkex.engine.messages import (
    CreateRun,
    Datum,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    OptimStep,
    Sample,
    SamplingParams,
)
from tinkex.engine.model.block_configs import DenseMlpConfig
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.families import parse_config
from tinkex.engine.process.placement import training_limits
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE
from tinkex.engine.sampling.limits import SamplerLimits
from tinkex.engine.sampling.model_end import Ending
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.settings import WorkerConfig
from tinkex.engine.training.trainer import Trainer

EIGHT_BILLION = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}  # fmt: skip
SMALL = EIGHT_BILLION | {
    "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
RANK = 32
ADAM = {
    "learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a tiny shape, to try the script")
    parser.add_argument("--only", choices=("train", "decode"), help="leave the other part out")
    asked = parser.parse_args()
    small = asked.small
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = parse_config(SMALL if small else EIGHT_BILLION)
    decoder = seeded_decoder(
        config, device, torch.bfloat16 if device.type == "cuda" else torch.float32
    )
    flops, bandwidth = ceilings(device, small)
    rows = [
        Row("matrix product 8192³, bf16", flops / 1e12, "TFLOP/s", higher_is_better=True),
        Row("device copy, bytes read and written", bandwidth / 1e12, "TB/s", higher_is_better=True),
    ]
    long = 128 if small else 4096
    trainings = ((1, 512), (8, 512), (1, long)) if asked.only != "decode" else ()
    for runs, length in trainings:
        rate = train_rate(decoder, runs, length)
        peak = flops / train_flops(config, length)
        rows.append(
            Row(
                f"train, rank {RANK}, 8 × {length} packed, {runs} run(s) in the batch",
                rate, "tokens/s", against=peak, higher_is_better=True,
                target="≥ 14,300 tokens/s" if runs == 1 else "within 10 % of one run",
            )
        )  # fmt: skip
    decodings = ((1, 0), (32, 0), (128, 0), (256, 0), (32, 1), (32, 32))
    for batch, adapters in decodings if asked.only != "train" else ():
        rate, context = decode_rate(decoder, batch, adapters, small)
        floor = bandwidth * batch / step_bytes(decoder, batch, context, adapters)
        rows.append(
            Row(
                f"decode, batch {batch}, {adapters} adapter(s)",
                rate, "tokens/s", against=floor, higher_is_better=True,
                target="≤ 10 % (1), ≤ 20 % (32) under none" if adapters else "≥ 70 % of bandwidth",
            )
        )  # fmt: skip
    note = (
        "“The alternative” is the ceiling: for training, the measured matrix rate over the "
        "operations of a LoRA step (2 per parameter and token forwards, 2 backwards, attention "
        "added); for decoding, the measured copy bandwidth over one read of weights, adapters and "
        "cache. "
        f"Peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB."
        if device.type == "cuda"
        else "No GPU: the script ran for its own sake."
    )
    name = "_".join(["engine_gpu", *(["small"] if small else []), *filter(None, [asked.only])])
    write(name, "The engine on a GPU", rows, note)


# ---- ceilings


def ceilings(device: torch.device, small: bool) -> tuple[float, float]:
    """The card's own matrix rate (FLOP/s) and copy bandwidth (B/s)."""
    size = 512 if small else 8192
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    product = median_seconds(lambda: a @ b, device)
    source = torch.randn(2**20 if small else 2**30, device=device)
    target = torch.empty_like(source)
    copy = median_seconds(lambda: target.copy_(source), device)
    return 2 * size**3 / product, 2 * source.nbytes / copy


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    for _ in range(1):
        work()
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# ---- training


def train_flops(config: ModelConfig, length: int) -> float:
    """Operations per token of a LoRA step: frozen matrices need no weight gradient."""
    hidden, shape, mlp = config.hidden_size, config.attention, config.layers[0].mlp
    assert isinstance(mlp, DenseMlpConfig)
    layer = hidden * (2 * shape.q_size + 2 * shape.kv_size) + 3 * hidden * mlp.inner
    matrices = len(config.layers) * layer + config.vocab_size * hidden
    attention = len(config.layers) * shape.q_size * length / 2 * 2
    return 4.0 * matrices + 2.0 * attention + 5.0 * attention


def train_rate(decoder: Decoder, runs: int, length: int) -> float:
    """Eight sequences a step, shared out among the runs; with the limits a served engine has."""
    if decoder.device.type == "cuda":
        torch.cuda.empty_cache()  # limits follow what is free, as when an engine starts
    trainer = Trainer(decoder, training_limits(WorkerConfig(""), decoder))
    count = 8
    rng = np.random.default_rng(0)
    per_run = max(1, count // runs)
    for run in range(runs):
        trainer.create_run(CreateRun(f"c{run}", f"run{run}", LoraSpec(RANK, seed=run)))

    def step() -> None:
        commands = [
            ForwardBackward(
                f"f{run}", f"run{run}", data(rng, decoder, per_run, length), "cross_entropy"
            )
            for run in range(runs)
        ]
        for outcome in trainer.forward_backward(commands):
            assert isinstance(outcome, ForwardBackwardResult), outcome
        for run in range(runs):
            trainer.optim_step(OptimStep(f"o{run}", f"run{run}", "adamw", ADAM))

    seconds = median_seconds(step, decoder.device, repeats=2)
    return per_run * runs * length / seconds


def data(rng: np.random.Generator, decoder: Decoder, count: int, length: int) -> tuple[Datum, ...]:
    found = []
    for _ in range(count):
        ids = rng.integers(0, decoder.config.vocab_size, length + 1, dtype=np.int64)
        weights = np.ones(length, np.float32)
        found.append(
            Datum(ids[:-1].astype(np.int32), {"target_tokens": ids[1:], "weights": weights})
        )
    return tuple(found)


# ---- decoding


def step_bytes(decoder: Decoder, batch: int, context: int, adapters: int) -> float:
    """What one decode step must read: every matrix, adapter and sequence's cache once."""
    weights = sum(t.nbytes for t in decoder.weights.tensors()) - decoder.weights.embed.nbytes
    cache = batch * context * len(decoder.config.layers) * 2 * decoder.config.attention.kv_size
    layout = AdapterLayout(decoder.config, LoraSpec(RANK))
    return weights + (cache + adapters * layout.size) * decoder.dtype.itemsize


def decode_rate(decoder: Decoder, batch: int, adapters: int, small: bool) -> tuple[float, int]:
    """Tokens per second of `batch` requests that all decode, and their mean context."""
    prompt, new = (16, 32) if small else (512, 64)
    made = {str(seed): adapter(decoder, seed) for seed in range(adapters)}
    sampler = decoding(decoder, batch, adapters, made.__getitem__, (prompt, new))
    rate = rate_until(sampler, batch * (new - 8), decoder.device)
    while sampler.busy:
        sampler.step()
    return rate, prompt + new // 2


def decoding(
    decoder: Decoder, batch: int, adapters: int, made: Callable[[str], AdapterWeights],
    lengths: tuple[int, int],
) -> Sampler:  # fmt: skip
    """A sampler with so many requests, of a prompt's and new tokens, that all decode by now."""
    prompt, new = lengths
    pages = batch * -(-(prompt + new + PAGE_SIZE) // PAGE_SIZE) + 8
    limits = SamplerLimits(
        pages=pages, max_context=prompt + new + 1, rows=batch, step_tokens=8192, snapshots=1
    )
    sampler = Sampler(decoder, Ending((), None), limits, made)
    for index in range(adapters):
        sampler.versions.add(f"w{index}", str(index))
    rng = np.random.default_rng(0)
    for index in range(batch):
        ids = rng.integers(0, decoder.config.vocab_size, prompt, dtype=np.int64).astype(np.int32)
        weights = f"w{index % adapters}" if adapters else ""
        params = SamplingParams(max_tokens=new, seed=index, stop=())
        sampler.submit(Sample(f"s{index}", weights, ids, params))
    while sampler.sampled_tokens < batch * 16:  # all prompts done, kernels compiled
        sampler.step()
    return sampler


def rate_until(sampler: Sampler, tokens: int, device: torch.device) -> float:
    """Tokens a second until so many have been sampled."""
    synchronize(device)
    start, before = time.perf_counter(), sampler.sampled_tokens
    while sampler.sampled_tokens < tokens:
        sampler.step()
    synchronize(device)
    return (sampler.sampled_tokens - before) / (time.perf_counter() - start)


def adapter(decoder: Decoder, seed: int) -> AdapterWeights:
    trainer = Trainer(decoder)
    trainer.create_run(CreateRun("c", "adapter", LoraSpec(RANK, seed=seed)))
    return trainer.weights("adapter")


if __name__ == "__main__":
    main()
