"""Training and decoding of every family at its true shape on one GPU, with the limit beside each.

Seeded bfloat16 weights made on the device; the engine alone, no server. Training: a rank-32 step of
one run over packed sequences of 4,096 tokens, optimizer included; its limit is the card's own
matrix rate over the operations such a step needs. Decoding: tokens a second at several batch
sizes, without and with adapters; its limit is the card's own copy bandwidth over the bytes a step
must read. Every line is printed as it is known.

    python benchmarks/gpu_families.py [--small] [--layers N] [--only train|decode] [--profile]
        [--batches 1,32:1] [--write] [FAMILY ...]

`--batches` lists batch sizes, after a colon the number of adapters on all modules.
"""

from __future__ import annotations

import argparse
import gc
import time

import numpy as np
import torch
from engine_families import SHAPES, TARGETS, build
from engine_gpu import ADAM, RANK, ceilings, data, decoding, rate_until, synchronize
from report import Row, write

from tinkex.engine.adapters.layout import AdapterLayout, AdapterWeights
from tinkex.engine.messages import (
    CreateRun,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    OptimStep,
)
from tinkex.engine.model.block_configs import ExpertsConfig, GatedDeltaConfig
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.process.placement import training_limits
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.settings import WorkerConfig
from tinkex.engine.training.trainer import Trainer

LENGTH, SEQUENCES = 4096, 4
PROMPT, NEW = 512, 64


def main() -> None:
    asked = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    flops, bandwidth = ceilings(device, device.type != "cuda")
    say(f"ceilings: {flops / 1e12:.0f} TFLOP/s, {bandwidth / 1e12:.2f} TB/s")
    rows: list[Row] = []
    for name in asked.families or SHAPES:
        begun = time.perf_counter()
        decoder = build(name, asked.small, asked.layers, device)
        synchronize(device)
        say(f"{name}: {decoder.parameters / 1e9:.2f} B parameters in "
            f"{time.perf_counter() - begun:.1f} s")  # fmt: skip
        if asked.only != "decode":
            rows.append(trained(name, decoder, flops, asked.profile, asked.small))
        if asked.only != "train":
            rows.extend(decoded(name, decoder, bandwidth, asked))
        del decoder
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if asked.write:
        note = (
            f"Seeded bfloat16 weights of true shapes, rank {RANK} on all modules. “The "
            f"alternative” is the limit: {flops / 1e12:.0f} TFLOP/s over the operations of a "
            f"training step, or {bandwidth / 1e12:.2f} TB/s over the bytes of a decode step."
        )
        write("gpu_families", "Families of models on a GPU", rows, note)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", help=f"of {', '.join(SHAPES)}; all by default")
    parser.add_argument("--small", action="store_true", help="small shapes, for a CPU")
    parser.add_argument("--layers", type=int, help="fewer layers than the true shape has")
    parser.add_argument("--only", choices=("train", "decode"), help="leave the other part out")
    parser.add_argument("--profile", action="store_true", help="print where device time goes")
    parser.add_argument("--batches", default="1,32,128,32:1,32:32")
    parser.add_argument("--write", action="store_true", help="write the results page")
    return parser.parse_args()


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def shown(row: Row) -> Row:
    share = f" = {row.value / row.against:.2f} of {row.against:,.0f}" if row.against else ""
    say(f"{row.what}: {row.value:,.0f} {row.unit}{share}")
    return row


# ---- training


def active(config: ModelConfig) -> float:
    """Matrix elements that a token is multiplied with, the unembedding included."""
    hidden = config.hidden_size
    total = float(config.vocab_size * hidden)
    for layer in config.layers:
        mixer, mlp = layer.mixer, layer.mlp
        if isinstance(mixer, GatedDeltaConfig):
            inner = mixer.channels + mixer.value_size + 2 * mixer.value_heads
            total += hidden * (inner + mixer.value_size)
        else:
            total += hidden * (sum(mixer.qkv_sizes) + mixer.q_size)
        if isinstance(mlp, ExpertsConfig):
            shared = 0 if mlp.shared is None else mlp.shared.inner
            total += hidden * (3 * mlp.active * mlp.inner + mlp.experts + 3 * shared)
        else:
            total += 3 * hidden * mlp.inner
    return total


def attention_flops(config: ModelConfig, length: int) -> float:
    """Per token, forwards: two products with every key that it sees."""
    seen = [
        (mixer.q_size, min(length / 2, mixer.window or length))
        for mixer in config.attends
        if mixer is not None
    ]
    return sum(4.0 * size * keys for size, keys in seen)


def trained(name: str, decoder: Decoder, flops: float, profile: bool, small: bool) -> Row:
    device, length = decoder.device, 256 if small else LENGTH
    trainer = Trainer(decoder, training_limits(WorkerConfig(""), decoder))
    trainer.create_run(CreateRun("c", "run", LoraSpec(RANK, seed=0)))
    rng = np.random.default_rng(0)

    def step() -> float:
        begun = time.perf_counter()
        command = ForwardBackward(
            "f", "run", data(rng, decoder, SEQUENCES, length), "cross_entropy"
        )
        for outcome in trainer.forward_backward([command]):
            assert isinstance(outcome, ForwardBackwardResult), outcome
        trainer.optim_step(OptimStep("o", "run", "adamw", ADAM))
        synchronize(device)
        return time.perf_counter() - begun

    say(f"{name}: first step {step():.1f} s")
    seconds = min(step() for _ in range(2))
    if device.type == "cuda":
        say(f"{name}: peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
        torch.cuda.reset_peak_memory_stats()
    if profile:
        print_profile(step)
    needed = 4 * active(decoder.config) + 3.5 * attention_flops(decoder.config, length)
    rate = SEQUENCES * length / seconds
    label = f"{name}: train, {SEQUENCES} × {length:,} packed"
    return shown(Row(label, rate, "tokens/s", flops / needed, True, TARGETS[name]))


def print_profile(work: object) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        assert callable(work)
        seconds = work()
    events = sorted(found.key_averages(), key=lambda e: -e.device_time_total)
    total = sum(event.device_time_total for event in events) / 1e3
    print(f"   device {total:.0f} ms of {1e3 * seconds:.0f} ms, "
          f"{sum(event.count for event in events)} launches")  # fmt: skip
    often = sorted(events[20:], key=lambda e: -e.count)[:12]
    for event in [*events[:20], *often]:
        print(f"   {event.device_time_total / 1e3:9.2f} ms {event.count:6d} × {event.key[:90]}")


# ---- decoding


def step_bytes(decoder: Decoder, batch: int, context: int, adapters: int) -> float:
    """What one decode step must move: matrices of the experts that are hit on average, the other
    matrices, adapters, keys and values, and states, which are written too."""
    config, item = decoder.config, decoder.dtype.itemsize
    total = float(config.vocab_size * config.hidden_size)
    layout = AdapterLayout(config, LoraSpec(RANK)).size * min(adapters, batch)
    state = 0.0
    for layer in config.layers:
        mixer, mlp = layer.mixer, layer.mlp
        if isinstance(mixer, GatedDeltaConfig):
            inner = mixer.channels + mixer.value_size + 2 * mixer.value_heads
            total += config.hidden_size * (inner + mixer.value_size)
            state += 8.0 * batch * mixer.value_heads * mixer.key_dim * mixer.value_dim
        else:
            total += config.hidden_size * (sum(mixer.qkv_sizes) + mixer.q_size)
            total += batch * min(context, mixer.window or context) * 2 * mixer.kv_size
        if isinstance(mlp, ExpertsConfig):
            hit = mlp.experts * (1 - (1 - mlp.active / mlp.experts) ** batch)
            shared = 0 if mlp.shared is None else mlp.shared.inner
            total += config.hidden_size * (3 * hit * mlp.inner + 2 * mlp.experts + 3 * shared)
            if adapters:
                spare = 3 * (mlp.experts - hit) * mlp.inner * RANK * min(adapters, batch)
                layout -= int(spare)
        else:
            total += 3 * config.hidden_size * mlp.inner
    return (total + layout) * item + state


def decoded(
    name: str, decoder: Decoder, bandwidth: float, asked: argparse.Namespace
) -> list[Row]:  # fmt: skip
    rows, made = [], adapter(decoder)
    for pair in asked.batches.split(","):
        batch, _, tuned = pair.partition(":")
        count, adapters = int(batch), int(tuned or 0)
        rate, context = decode_rate(decoder, count, adapters, made, asked.profile)
        limit = count * bandwidth / step_bytes(decoder, count, context, adapters)
        label = f"{name}: decode, batch {count}, {adapters} adapter(s)"
        target = "" if adapters else "≥ 70 % of bandwidth"
        rows.append(shown(Row(label, rate, "tokens/s", limit, True, target)))
        gc.collect()
    return rows


def adapter(decoder: Decoder) -> AdapterWeights:
    """One of rank 32 whose B are not zero, made on the device."""
    layout = AdapterLayout(decoder.config, LoraSpec(RANK))
    flat = torch.randn(layout.size, device=decoder.device) * 0.01
    return AdapterWeights(RANK, layout.scaling, layout.modules(flat))


def decode_rate(
    decoder: Decoder, batch: int, adapters: int, made: AdapterWeights, profile: bool
) -> tuple[float, int]:
    """Tokens per second of `batch` requests that all decode, and their mean context."""
    sampler = decoding(decoder, batch, adapters, lambda _: made, (PROMPT, NEW))
    rate = rate_until(sampler, batch * (NEW - 16), decoder.device)
    if profile:
        print_profile(lambda: timed_step(sampler, decoder.device))
    while sampler.busy:
        sampler.step()
    return rate, PROMPT + NEW // 2


def timed_step(sampler: Sampler, device: torch.device) -> float:
    begun = time.perf_counter()
    sampler.step()
    synchronize(device)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
