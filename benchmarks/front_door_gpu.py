"""A GPU as its users get it: `tinkex serve` on seeded weights of the Qwen3-8B shape, both SDKs.

    python benchmarks/front_door_gpu.py [--small] [--rounds 5]

The server is a process started as the README says, every client a process of its own. Before it, on
the same card: the engine alone (its own process spoken to directly) and plain transformers + PEFT.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from bare_engine import BareEngine
from peft_baseline import PeftTrainer
from report import Row, write
from sdk_client import RANK, SdkClient
from seeded_model import write_seeded_folder
from served_process import ServedProcess, resident, serving

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
    "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960, "rope_theta": 1000000.0, "tie_word_embeddings": False,
    "hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16",
}  # fmt: skip
SMALL = QWEN3_8B | {
    "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
SDKS = {"tinkex": "ours", "tinker": "official SDK"}
STEP = (8, 512)
NEW = PROMPT = 128
AT_ONCE = {1: "≥200", 32: "≥5,000", 128: "≥13,000"}
LONG = (16, 8192)
SHARED = 4096
IDLE_S = 20.0
"""Left to a server after its first calls, as users leave it: what is captured is captured then."""

Rates = dict[str, float]


class Told(list[Row]):
    """Printed as they are added: a device may be taken away before the table is written."""

    def append(self, row: Row) -> None:
        print(*row.cells(), sep=" | ", flush=True)
        super().append(row)

    def __iadd__(self, rows: Iterable[Row]) -> Self:
        for row in rows:
            self.append(row)
        return self


def middle(times: list[float]) -> float:
    return statistics.median(times)


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return found


def engine_alone(folder: Path, vocabulary: int, rounds: int, base: str) -> Rates:
    rng = np.random.default_rng(0)

    def tokens(count: int, length: int) -> list[Any]:
        return [rng.integers(0, vocabulary, length) for _ in range(count)]

    begun = time.perf_counter()
    engine = BareEngine(folder, RANK, "auto", base)
    found = {"ready": time.perf_counter() - begun}
    engine.settle()
    found["settled"] = time.perf_counter() - begun
    try:
        sequences, length = STEP
        step = timed(lambda: engine.step(tokens(sequences, length + 1)), rounds + 1)
        found["train"] = sequences * length / middle(step[1:])
        with tempfile.TemporaryDirectory() as saved:
            engine.tuned(Path(saved))
            for at_once in AT_ONCE:
                took = timed(lambda: engine.sample(tokens(at_once, PROMPT), NEW, 1), 4)  # noqa: B023 - called at once
                found[f"sample {at_once}"] = at_once * NEW / middle(took[1:])
            count, length = LONG
            took = timed(lambda: engine.sample(tokens(count, length), 1, 1), 3)
            found["prompts"] = count * length / middle(took[1:])
    finally:
        engine.close()
    return found


def peft_alone(folder: Path, vocabulary: int) -> Rates:
    rng = np.random.default_rng(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    trainer = PeftTrainer(folder, RANK, dtype=dtype, device=device)
    sequences, length = STEP
    batch = [rng.integers(0, vocabulary, length + 1) for _ in range(sequences)]
    return {"train": sequences * length / middle(timed(lambda: trainer.step(batch), 4)[1:])}


def through_the_door(
    client: SdkClient, who: str, bare: Rates, peft: Rates, rounds: int, idle: float
) -> list[Row]:
    rows = Told()

    def rate(what: str, value: float, name: str, target: str) -> None:
        rows.append(Row(f"{what}, {who}", value, "tokens/s", bare.get(name),
                        higher_is_better=True, target=target))  # fmt: skip

    def wait(what: str, seconds: float, target: str = "") -> None:
        rows.append(Row(f"{what}, {who}", seconds * 1e3, "ms", target=target))

    begun = time.perf_counter()
    client.ask("begin")
    (first,) = client.ask("passes", rounds=1, sequences=4, tokens=30, backward=True)
    wait("first `forward_backward` after ready", first, "≤1 s")
    ((first, _),) = client.ask("samples", rounds=1, at_once=1, prompt=PROMPT, new=1)
    wait("first sample after ready", first, "≤1 s")
    time.sleep(max(0.0, idle - (time.perf_counter() - begun)))
    for backward, target in ((True, "≤35 ms"), (False, "≤15 ms")):
        took = client.ask("passes", rounds=rounds + 2, sequences=4, tokens=30, backward=backward)
        name = "forward_backward" if backward else "forward"
        wait(f"`{name}` of 120 tokens", middle(took[2:]), target)
    sequences, length = STEP
    for pipelined, how in ((False, "one await at a time"), (True, "sent together")):
        took = client.ask("steps", rounds=rounds + 1, sequences=sequences, tokens=length,
                          pipelined=pipelined)  # fmt: skip
        value = sequences * length / middle(took[1:])
        rate(f"training 8×512, {how}", value, "train", "≥95 % of the engine alone")
    rows.append(Row(f"training 8×512 against transformers + PEFT, {who}", value, "tokens/s",
                    peft.get("train"), higher_is_better=True))  # fmt: skip
    wait("a sampler of the run as it is, to its first token",
         middle(client.ask("on_policy", rounds=4, prompt=PROMPT)[1:]), "≤100 ms")  # fmt: skip
    average, most = client.ask("apart", count=16, prompt=PROMPT, new=NEW)
    rows += [
        Row(f"logprobs of samples, trainer against sampler, {who}", average, "nats",
            target="≤0.01"),
        Row(f"the same, at most, {who}", most, "nats"),
    ]  # fmt: skip
    client.ask("tuned")
    for at_once, target in AT_ONCE.items():
        came = client.ask("samples", rounds=4, at_once=at_once, prompt=PROMPT, new=NEW)
        value = middle([tokens / took for took, tokens in came[1:]])
        rate(f"{at_once} samples at once, 128 + 128 tokens", value, f"sample {at_once}", target)
    count, length = LONG
    came = client.ask("samples", rounds=2, at_once=count, prompt=length, new=1)
    value = count * length / min(took for took, _ in came)
    rate(f"{count} prompts of 8,192", value, "prompts", "≥40,000, ≥95 % of the engine alone")
    return rows


def company(client: SdkClient, who: str) -> list[Row]:
    """Other ranks in a batch, other adapters in a burst, other prompts with the same beginning."""
    rows = Told()
    sequences, tokens = STEP
    work = {"rounds": 4, "sequences": 1, "tokens": tokens}
    ranks = [8, 16, 32, 64] * (sequences // 4)
    first, *equal = client.ask("together", ranks=[RANK] * sequences, **work)
    other, *mixed = client.ask("together", ranks=ranks, **work)
    rows += [
        Row(f"a step of 8 runs of ranks 8 to 64, against 8 of rank {RANK}, {who}",
            middle(mixed) * 1e3, "ms", middle(equal) * 1e3, target="≥0.87×"),
        Row(f"the first such step, {who}", other * 1e3, "ms", first * 1e3),
    ]  # fmt: skip
    client.ask("begin")
    fresh, known = zip(*client.ask("prefix", rounds=5, tokens=SHARED)[1:], strict=True)
    rows.append(
        Row(f"first token behind a known prefix of {SHARED:,}, against a new one, {who}",
            middle(known) * 1e3, "ms", middle(fresh) * 1e3, target="≥5×")
    )  # fmt: skip

    def rate(came: list[list[float]]) -> float:
        return middle([count / took for took, count in came[1:]])

    plain = rate(client.ask("samples", rounds=4, at_once=32, prompt=PROMPT, new=NEW))
    many = rate(client.ask("adapters", count=32, rounds=4, prompt=PROMPT, new=NEW))
    rows.append(
        Row(f"32 samples of 32 adapters at once, against none, {who}", many, "tokens/s", plain,
            higher_is_better=True, target="≥0.8×")
    )  # fmt: skip
    return rows


def beside(trainer: SdkClient, sampler: SdkClient, who: str) -> list[Row]:
    """One sample at a time while another tenant trains without a pause."""
    one = {"at_once": 1, "prompt": PROMPT, "new": NEW}
    sequences, tokens = STEP
    alone = middle([took for took, _ in sampler.ask("samples", rounds=4, **one)][1:])
    steps = trainer.ask("steps_for", seconds=5, sequences=sequences, tokens=tokens)
    trainer.tell("steps_for", seconds=8, sequences=sequences, tokens=tokens)
    time.sleep(1)
    both = middle([took for took, _ in sampler.ask("samples", rounds=4, **one)][1:])
    shared = trainer.answer()
    rows = Told()
    rows += [
        Row(f"a sample beside a trainer, against alone, {who}", both * 1e3, "ms", alone * 1e3,
            target="≥0.45×"),
        Row("training beside samples, against alone", shared, "steps/s", steps,
            higher_is_better=True, target="≥0.45×"),
    ]  # fmt: skip
    return rows


def after_a_kill(client: SdkClient, server: ServedProcess, who: str) -> list[Row]:
    """The engine is killed between two steps of a young run."""
    small = {"rounds": 1, "sequences": 4, "tokens": 30, "backward": True}
    client.ask("begin")
    client.ask("passes", **small)
    # Beside the engine waits a spare process, which is smaller and has nothing to lose.
    os.kill(max(server.engines, key=resident), signal.SIGKILL)
    (took,) = client.ask("passes", **small)
    rows = Told()
    rows.append(Row(f"the next step after kill -9 of the engine, {who}", took, "s", target="≤10 s"))
    # An engine that was just made has none of the weights that samplers of the one before used.
    first = client.ask("first_answers", prompt=16)
    if first:
        what = "a sampler's first answer on an engine that lacks its weights"
        rows += [
            Row(f"{what}, {who}", middle(first), "s", target="≤0.5 s"),
            Row(f"{what}, the slowest of {len(first)}, {who}", max(first), "s"),
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a tiny shape, to try the script")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--parts", default="peft,alone,door,company,beside,kill", help="what to measure"
    )
    parser.add_argument("--folder", type=Path, help="keep the seeded model here for another time")
    parser.add_argument("--base", default="auto", help="as `tinkex serve` takes it")
    parser.add_argument("--sdks", default=",".join(SDKS), help="with which clients")
    asked = parser.parse_args()
    facts = SMALL if asked.small else QWEN3_8B
    vocabulary = facts["vocab_size"]
    assert isinstance(vocabulary, int)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = asked.folder or place / "seeded-8b"
        if not folder.is_dir():
            write_seeded_folder(facts, folder, device)
        parts, sdks = asked.parts.split(","), asked.sdks.split(",")
        peft = peft_alone(folder, vocabulary) if "peft" in parts else {}
        if device.type == "cuda":
            torch.cuda.empty_cache()
        bare = (
            engine_alone(folder, vocabulary, asked.rounds, asked.base) if "alone" in parts else {}
        )
        print("engine alone", bare, "transformers + PEFT", peft, flush=True)
        begun = time.perf_counter()
        server = stack.enter_context(serving("--model", str(folder), "--base", asked.base))
        rows = [Row("from start to ready", time.perf_counter() - begun, "s")]
        clients = {
            sdk: stack.enter_context(
                SdkClient(sdk, server.url, f"tml-{sdk}", folder.name, vocabulary)
            )
            for sdk in sdks
        }
        for sdk, client in clients.items():
            if "door" in parts:
                idle = IDLE_S if sdk == sdks[0] else 0.0
                rows += through_the_door(client, SDKS[sdk], bare, peft, asked.rounds, idle)
        if "company" in parts:
            rows += company(clients[sdks[0]], SDKS[sdks[0]])
        if "beside" in parts:
            rows += beside(clients[sdks[-1]], clients[sdks[0]], SDKS[sdks[0]])
        if "kill" in parts:
            rows += after_a_kill(clients[sdks[0]], server, SDKS[sdks[0]])
    note = (
        "“The alternative” is the engine alone (its process spoken to directly) for rates, unless "
        f"the row says otherwise. Rank {RANK}, samples from an adapter of the run, seeded weights."
    )
    if bare:
        ready = f"ready after {bare['ready']:.1f} s, all captured after {bare['settled']:.1f} s"
        note += f" Engine alone: {ready}."
    name = "front_door_gpu" + ("_small" if asked.small else "")
    name += "" if asked.base == "auto" else f"_{asked.base.replace('-', '_')}"
    write(name, "Through the front door, 8B shape on a GPU", rows, note)


if __name__ == "__main__":
    main()
