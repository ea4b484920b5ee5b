"""Everything as users get it: `tinkex serve` as a process, driven by the official SDK and by ours.

    python benchmarks/front_door.py [--rounds 5]

A tiny model on the CPU, where what surrounds the engine weighs most. Client programs are processes
of their own. In the same run, taking turns: the engine alone (its own process spoken to directly)
and bare transformers + PEFT in this process. What is measured of a part only is a diagnosis; this
is the result.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
import transformers
from bare_engine import BareEngine
from numpy.typing import NDArray
from peft_baseline import PeftTrainer
from report import Row, write
from sdk_client import MODEL, RANK, VOCABULARY, SdkClient
from served_process import ServedProcess, resident, serving

from tinkex.engine.builtin.tiny import ensure_tiny
from tinkex.server.engines.model_sources import default_cache

SDKS = {"tinkex": "ours", "tinker": "official SDK"}
TARGETS = {
    "optim_step": {"tinkex": "≤4 ms", "tinker": "≤8 ms"},
    "forward_backward": {"tinkex": "≤12 ms", "tinker": "≤15 ms"},
}
STEP = {"sequences": 8, "tokens": 128}
PROMPT, NEW, AT_ONCE = 32, 64, (1, 8, 32)
TENANTS = (1, 2, 4)
TENANT_STEPS = ({"sequences": 1, "tokens": 31}, STEP)
MIX_S, TENANT_S = 4.0, 1.5

Batch = list[NDArray[np.int64]]


class Bare:
    """What needs no server: the engine alone, and transformers + PEFT."""

    def __init__(self, folder: Path) -> None:
        self.engine, self.peft = BareEngine(folder, RANK), PeftTrainer(folder, RANK)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._rng = np.random.default_rng(0)

    def tokens(self, sequences: int, length: int) -> Batch:
        return [self._rng.integers(0, VOCABULARY, length) for _ in range(sequences)]

    def generate(self, prompts: Batch) -> int:
        """`generate` of transformers, all prompts as one batch; how many tokens came."""
        ids = torch.from_numpy(np.stack(prompts))
        with torch.inference_mode():
            found = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
                max_new_tokens=NEW, min_new_tokens=NEW, pad_token_id=0,
            )  # fmt: skip
        return int(found.shape[0] * (found.shape[1] - ids.shape[1]))


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def milliseconds(times: Sequence[float], part: float) -> float:
    return float(np.quantile(times, part)) * 1e3


def requests(server: ServedProcess) -> list[Row]:
    """A request without work, over one plain connection."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))

    def health() -> None:
        connection.request("GET", "/api/v1/healthz")
        connection.getresponse().read()

    times = [seconds(health) for _ in range(300)][20:]
    return [
        Row(
            "a request without work (healthz), p50", milliseconds(times, 0.5), "ms", target="≤1 ms"
        ),
        Row("a request without work (healthz), p99", milliseconds(times, 0.99), "ms"),
    ]


def operations(clients: dict[str, SdkClient], rounds: int) -> list[Row]:
    """Each operation awaited before the next, the SDKs taking turns."""
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(3):
        for sdk, client in clients.items():
            client.ask("operations", rounds=1)
            for name, took in client.ask("operations", rounds=rounds).items():
                times.setdefault((name, sdk), []).extend(took)
    rows = []
    for (name, sdk), took in times.items():
        target = TARGETS.get(name, {}).get(sdk, "")
        rows.append(
            Row(f"`{name}`, {SDKS[sdk]}, p50", milliseconds(took, 0.5), "ms", target=target)
        )
        rows.append(Row(f"`{name}`, {SDKS[sdk]}, p99", milliseconds(took, 0.99), "ms"))
    return rows


def steps(clients: dict[str, SdkClient], bare: Bare, rounds: int) -> list[Row]:
    """A training step, against the engine alone and against transformers + PEFT."""
    length = STEP["tokens"] + 1
    times: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        for sdk, client in clients.items():
            for way in (False, True):
                took = client.ask("steps", rounds=1, pipelined=way, **STEP)
                times.setdefault(f"{sdk} {way}", []).extend(took)
        for name, step in (("engine", bare.engine.step), ("peft", bare.peft.step)):
            batch = bare.tokens(STEP["sequences"], length)
            times.setdefault(name, []).append(seconds(lambda: step(batch)))  # noqa: B023
    middle = {name: statistics.median(took[1:]) * 1e3 for name, took in times.items()}
    rows = []
    for sdk, who in SDKS.items():
        for way, how in ((False, "one await at a time"), (True, "sent together")):
            what, value = f"step of 8×128, {who}, {how}", middle[f"{sdk} {way}"]
            rows.append(Row(f"{what}, against transformers + PEFT", value, "ms", middle["peft"]))
            rows.append(Row(f"{what}, against the engine alone", value, "ms", middle["engine"]))
    return rows


def samples(clients: dict[str, SdkClient], bare: Bare, rounds: int) -> list[Row]:
    """Tokens a second of samples sent at once, against `generate` and the engine alone."""
    rows = []
    for at_once in AT_ONCE:
        rates: dict[str, list[float]] = {}
        for round_ in range(rounds + 1):
            for sdk, client in clients.items():
                ((took, came),) = client.ask(
                    "samples", rounds=1, at_once=at_once, prompt=PROMPT, new=NEW
                )
                rates.setdefault(sdk, []).append(came / took)
            prompts, begun = bare.tokens(at_once, PROMPT), time.perf_counter()
            came = bare.engine.sample(prompts, NEW, round_)
            rates.setdefault("engine", []).append(came / (time.perf_counter() - begun))
            begun = time.perf_counter()
            came = bare.generate(prompts)
            rates.setdefault("generate", []).append(came / (time.perf_counter() - begun))
        middle = {name: statistics.median(found[1:]) for name, found in rates.items()}
        for sdk, who in SDKS.items():
            what = f"{at_once} sample{'s' * (at_once > 1)} at once, {who}"
            for other, said, target in (
                ("generate", "`generate`", "≥2×"),
                ("engine", "the engine alone", ""),
            ):
                rows.append(Row(f"{what}, against {said}", middle[sdk], "tokens/s", middle[other],
                                higher_is_better=True, target=target))  # fmt: skip
    return rows


def tenants(server: ServedProcess) -> list[Row]:
    """Steps a second of several tenants together, each a process with its own key, against one."""
    rows = []
    with ExitStack() as stack:
        everybody = [
            stack.enter_context(SdkClient("tinkex", server.url, f"tml-tenant-{number}"))
            for number in range(max(TENANTS))
        ]
        for client in everybody:
            client.ask("begin")
        for size in TENANT_STEPS:
            rates: dict[int, list[float]] = {count: [] for count in TENANTS}
            for _ in range(3):
                for count in TENANTS:
                    for client in everybody[:count]:
                        client.tell("steps_for", seconds=TENANT_S, **size)
                    rates[count].append(sum(client.answer() for client in everybody[:count]))
            middle = {count: statistics.median(found) for count, found in rates.items()}
            for count in TENANTS[1:]:
                what = (
                    f"{count} tenants, steps of {size['sequences']}×{size['tokens']}, against one"
                )
                rows.append(Row(what, middle[count], "steps/s", middle[1], higher_is_better=True,
                                target="≥1.3×" if count == 2 else ""))  # fmt: skip
    return rows


def mixed(server: ServedProcess, clients: dict[str, SdkClient], rounds: int) -> list[Row]:
    """One sample at a time while another tenant trains without a pause."""
    one = {"at_once": 1, "prompt": PROMPT, "new": NEW}
    rows = []
    with SdkClient("tinkex", server.url, "tml-trainer") as trainer:
        trainer.ask("begin")
        for sdk, client in clients.items():
            alone = [took for took, _ in client.ask("samples", rounds=rounds, **one)]
            trainer.tell("steps_for", seconds=MIX_S, **STEP)
            beside = [took for took, _ in client.ask("samples", rounds=rounds, **one)]
            trainer.answer()
            what = f"a sample beside a trainer, {SDKS[sdk]}, against alone"
            rows.append(Row(what, statistics.median(beside) * 1e3, "ms",
                            statistics.median(alone) * 1e3, target="≥0.45×"))  # fmt: skip
    return rows


def memory(server: ServedProcess, clients: dict[str, SdkClient]) -> list[Row]:
    own, engines = server.memory()
    held = {"the server's process": own, "the engine's process": engines}
    held |= {f"a client's process, {SDKS[sdk]}": resident(c.pid) for sdk, c in clients.items()}
    return [Row(f"memory of {what}", size / 2**20, "MiB") for what, size in held.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with ExitStack() as stack:
        server = stack.enter_context(serving("--model", MODEL, "--quiet"))
        bare = Bare(ensure_tiny(MODEL, default_cache({})))
        stack.callback(bare.engine.close)
        clients = {
            sdk: stack.enter_context(SdkClient(sdk, server.url, f"tml-{sdk}")) for sdk in SDKS
        }
        for client in clients.values():
            client.ask("begin")
        rows = requests(server)
        rows += operations(clients, 5 * rounds)
        rows += steps(clients, bare, rounds)
        rows += samples(clients, bare, rounds)
        rows += mixed(server, clients, rounds)
        rows += memory(server, clients)
        rows += tenants(server)
    note = (
        f"`tinkex serve --model {MODEL}` as a process, every client a process of its own, rank "
        f"{RANK}; prompts of {PROMPT} tokens, {NEW} new ones at temperature 1. `forward_backward` "
        "and `forward` are of 31 tokens, `sample` is of one token. Figures without an alternative "
        "are bare facts. Everything shares the machine's cores: server, engine, clients, and the "
        "alternatives when it is their turn. Medians of rounds taken in turns."
    )
    write("front_door", "Through the front door, tiny model on the CPU", rows, note)


if __name__ == "__main__":
    main()
