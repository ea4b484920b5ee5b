"""Training an 8B-shaped model on one GPU: tokens per second, one tenant and eight.

    python benchmarks/engine_training_gpu.py

Random bfloat16 weights of the Llama-3-8B shape, rank 32 everywhere, 4,096 packed tokens a step, the
optimizer included. The model's own floating-point work (forward, and backward to the inputs; base
weights take no gradient) over the time, against the card's dense bfloat16 peak, is the last row.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from report import Row, write

from tinkex.engine.limits import Limits
from tinkex.engine.messages import CreateRun, Datum, ForwardBackward, LoraSpec, OptimStep
from tinkex.engine.model.config import ModelConfig, parse_config
from tinkex.engine.model.decoder import Decoder, LayerWeights, Weights
from tinkex.engine.trainer import Trainer

SHAPE = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 8192, "rope_theta": 500000.0,
}  # fmt: skip
TOKENS, RANK, ROUNDS, PEAK = 4096, 32, 5, 989e12
ADAM = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12,
        "weight_decay": 0.0, "grad_clip_norm": 0.0}  # fmt: skip


def random_decoder(config: ModelConfig) -> Decoder:
    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device="cuda") * 0.02

    hidden, inner = config.hidden_size, config.intermediate_size
    ones = torch.ones(hidden, dtype=torch.bfloat16, device="cuda")
    layers = tuple(
        LayerWeights(
            input_norm=ones,
            qkv=matrix(config.q_size + 2 * config.kv_size, hidden),
            o=matrix(hidden, config.q_size),
            post_norm=ones,
            gate_up=matrix(2 * inner, hidden),
            down=matrix(hidden, inner),
        )
        for _ in range(config.layers)
    )
    embed, unembed = matrix(config.vocab_size, hidden), matrix(config.vocab_size, hidden)
    return Decoder(config, Weights(embed, layers, ones, unembed))


def make_call(rng: np.random.Generator, run: str, lengths: list[int]) -> ForwardBackward:
    data = tuple(
        Datum(
            rng.integers(0, 128256, n).astype(np.int32),
            {"target_tokens": rng.integers(0, 128256, n), "weights": np.ones(n, np.float32)},
        )
        for n in lengths
    )
    return ForwardBackward("", run, data, "cross_entropy")


def tokens_per_second(trainer: Trainer, calls: list[ForwardBackward]) -> float:
    times = []
    for _ in range(ROUNDS + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for outcome in trainer.forward_backward(calls):
            if isinstance(outcome, Exception):
                raise outcome
        for call in calls:
            trainer.optim_step(OptimStep("", call.run, "adamw", ADAM))
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return TOKENS / statistics.median(times[2:])


def main() -> None:
    decoder = random_decoder(parse_config(SHAPE))
    limits = Limits(micro_batch_tokens=TOKENS, activation_bytes=90 << 30, logit_elements=1 << 28)
    trainer, rng, rates = Trainer(decoder, limits), np.random.default_rng(0), {}
    for tenants in (1, 8):
        for index in range(tenants):
            trainer.create_run(CreateRun("", f"{tenants}/{index}", LoraSpec(RANK, seed=index)))
        lengths = [512] * (8 // tenants)
        calls = [make_call(rng, f"{tenants}/{index}", lengths) for index in range(tenants)]
        rates[tenants] = tokens_per_second(trainer, calls)
    used = rates[1] * 4 * decoder.parameters / PEAK * 100
    peak = torch.cuda.max_memory_allocated() / 2**30
    rows = [
        Row("one tenant", rates[1], "tokens/s", bar="≥14,300"),
        Row("eight tenants", rates[8], "tokens/s", rates[1], True, "≥0.9× one"),
        Row("share of the bf16 peak", used, "%", bar="≥55"),
        Row("peak memory", peak, "GiB"),
    ]
    write("engine_training_gpu", "Training, 8B shape, one GPU", rows)


if __name__ == "__main__":
    main()
