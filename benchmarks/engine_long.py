"""Training on long sequences, on one GPU at the Qwen3-8B shape, in bf16, the engine alone.

A rank-32 step over one sequence, optimizer included, with the limits a served engine has and a
sampler's cache beside it: tokens per second and the most memory it took.

    python benchmarks/engine_long.py [--small] [--lengths 32768,131072] [--base auto]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from engine_float8 import BASES
from engine_gpu import ADAM, RANK, data, synchronize
from front_door_gpu import QWEN3_8B, SMALL
from gpu_families import say
from report import Row, write
from seeded_model import seeded_decoder

from tinkex.engine.messages import (
    CreateRun,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    OptimStep,
)
from tinkex.engine.model.families import parse_config
from tinkex.engine.process.placement import sampling_limits, training_limits
from tinkex.engine.sampling.model_end import Ending
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.settings import WorkerConfig
from tinkex.engine.training.trainer import Trainer

TARGETS = {32768: "≥6,500 tokens/s"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a tiny shape, to try the script")
    parser.add_argument("--lengths", default="32768,131072")
    parser.add_argument("--base", default="auto", choices=BASES)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lengths = [int(length) for length in asked.lengths.split(",")]
    facts = (SMALL if asked.small else QWEN3_8B) | {"max_position_embeddings": max(lengths)}
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    decoder = seeded_decoder(parse_config(facts), device, dtype, BASES[asked.base])
    config = WorkerConfig("", kv_bytes=None if device.type == "cuda" else 16 << 20)
    limits, sampling = training_limits(config, decoder), sampling_limits(config, decoder)
    trainer = Trainer(decoder, limits)
    sampler = Sampler(decoder, Ending((), None), sampling, lambda folder: trainer.weights(folder))
    trainer.create_run(CreateRun("c", "run", LoraSpec(RANK, seed=0)))
    rows = []
    for length in lengths:
        rows += measured(trainer, length)
        for row in rows[-2:]:
            say(" | ".join(row.cells()))
    del sampler
    note = f"Base {asked.base}, rank {RANK}, one sequence a step, seeded weights."
    write("engine_long" + ("_small" if asked.small else ""), "Long sequences", rows, note)


def measured(trainer: Trainer, length: int) -> list[Row]:
    """The better of two steps after a short one; a very long one is made once."""
    rng, decoder = np.random.default_rng(0), trainer.decoder
    gpu = decoder.device.type == "cuda"

    def step(tokens: int) -> float:
        begun = time.perf_counter()
        batch = data(rng, decoder, 1, tokens)
        (outcome,) = trainer.forward_backward([ForwardBackward("f", "run", batch, "cross_entropy")])
        assert isinstance(outcome, ForwardBackwardResult), outcome
        trainer.optim_step(OptimStep("o", "run", "adamw", ADAM))
        synchronize(decoder.device)
        return time.perf_counter() - begun

    step(min(length, 4096))
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    took = min(step(length) for _ in range(2 if length <= 1 << 16 else 1))
    peak = torch.cuda.max_memory_allocated() / 2**30 if gpu else 0.0
    return [
        Row(f"training 1 × {length:,}", length / took, "tokens/s", target=TARGETS.get(length, "")),
        Row("the same, most memory taken", peak, "GiB"),
    ]


if __name__ == "__main__":
    main()
