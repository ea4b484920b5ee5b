"""Everything as users get it: `tinkex serve` as a process, driven by the official SDK and by ours.

    python benchmarks/front_door.py [--rounds 5] [--parts samples tuned …]

A tiny model on the CPU, where what surrounds the engine weighs most. Client programs are processes
of their own. In the same run, taking turns: the engine alone (its own process spoken to directly)
and bare transformers + PEFT in this process. What is measured of a part only is a diagnosis; this
is the result. With `--parts` only those rows of the table are taken anew. What was written by hand
below the table stays.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from bare_engine import BareEngine
from numpy.typing import NDArray
from peft_baseline import PeftTrainer
from report import Row, update
from sdk_client import MODEL, RANK, VOCABULARY, SdkClient
from served_process import ServedProcess, resident, serving

from tinkex.engine.builtin.tiny import ensure_tiny
from tinkex.server.engines.model_sources import default_cache

SDKS = {"tinkex": "ours", "tinker": "official SDK"}
TARGETS = {
    "optim_step": {"tinkex": "≤4 ms", "tinker": "≤8 ms"},
    "forward_backward": {"tinkex": "≤12 ms", "tinker": "≤15 ms"},
}
OPERATION = 31
STEP = {"sequences": 8, "tokens": 128}
PROMPT, NEW, AT_ONCE = 32, 64, (1, 8, 32)
GENERATED = {"do_sample": True, "top_k": 0, "max_new_tokens": NEW, "min_new_tokens": NEW,
             "pad_token_id": 0}  # fmt: skip
TENANTS = (1, 2, 4)
TENANT_STEPS = ({"sequences": 1, "tokens": OPERATION}, STEP)
MIX_S, TENANT_S = 6.0, 1.5
MIX_TURNS, SOON_S = 10, 0.5
PARTS = ["operations", "steps", "samples", "tuned", "mixed", "memory", "tenants", "engines"]
TITLE = "Through the front door, tiny model on the CPU"
NOTE = (
    f"`tinkex serve --model {MODEL}` as a process, every client a process of its own, rank "
    f"{RANK}; prompts of {PROMPT} tokens, {NEW} new ones at temperature 1. `generate` takes "
    "all prompts as one batch of one length, with its cache and as many threads as there are "
    "cores; samples are requests of their own, each with its logprobs. `forward_backward` "
    f"and `forward` are of {OPERATION} tokens, `sample` is of one token; beside `forward_backward` "
    "and `optim_step` is what transformers + PEFT take for the same without any server. Figures "
    "without an alternative are bare facts. Everything shares the machine's cores: server, engine, "
    "clients, and the alternatives when it is their turn. Medians of rounds taken in turns."
)

Batch = list[NDArray[np.int64]]
Others = dict[str, tuple[str, Callable[[Batch, int], int]]]


class Bare:
    """What needs no server: the engine alone, and transformers + PEFT."""

    def __init__(self, folder: Path) -> None:
        self.engine, self.peft = BareEngine(folder, RANK), PeftTrainer(folder, RANK)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._rng = np.random.default_rng(0)

    def tokens(self, sequences: int, length: int) -> Batch:
        return [self._rng.integers(0, VOCABULARY, length) for _ in range(sequences)]


def generate(model: Any, prompts: Batch) -> int:
    """`generate` of transformers, all prompts as one batch; how many tokens came."""
    ids = torch.from_numpy(np.stack(prompts))
    with torch.inference_mode():
        found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **GENERATED)
    return int(found.shape[0] * (found.shape[1] - ids.shape[1]))


def generate_scored(model: Any, prompts: Batch) -> int:
    """The same, and each token's logprob, as every sample brings it."""
    ids = torch.from_numpy(np.stack(prompts))
    with torch.inference_mode():
        found = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids),
            output_logits=True, return_dict_in_generate=True, **GENERATED,
        )  # fmt: skip
        new = found.sequences[:, ids.shape[1] :]
        scored = torch.stack(found.logits, dim=1).log_softmax(-1).gather(2, new[..., None])
    return sum(map(len, scored[..., 0].tolist()))


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


def operations(clients: dict[str, SdkClient], bare: Bare, rounds: int) -> list[Row]:
    """Each operation awaited before the next, the SDKs and transformers + PEFT taking turns."""
    times: dict[tuple[str, str], list[float]] = {}
    plain: dict[str, list[float]] = {"forward_backward": [], "optim_step": []}
    for _ in range(3):
        for sdk, client in clients.items():
            client.ask("operations", rounds=1)
            for name, took in client.ask("operations", rounds=rounds).items():
                times.setdefault((name, sdk), []).extend(took)
        bare.peft.step(bare.tokens(1, OPERATION + 1))
        for _ in range(rounds):
            batch = bare.tokens(1, OPERATION + 1)
            plain["forward_backward"].append(seconds(lambda: bare.peft.gradients(batch)))  # noqa: B023 - called at once
            plain["optim_step"].append(seconds(bare.peft.update))
    rows = []
    for (name, sdk), took in times.items():
        target, who = TARGETS.get(name, {}).get(sdk, ""), SDKS[sdk]
        against = milliseconds(plain[name], 0.5) if name in plain else None
        middle = milliseconds(took, 0.5)
        rows.append(Row(f"`{name}`, {who}, p50", middle, "ms", against, target=target))
        rows.append(Row(f"`{name}`, {who}, p99", milliseconds(took, 0.99), "ms"))
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
            times.setdefault(name, []).append(seconds(lambda: step(batch)))  # noqa: B023 - called at once
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
    others: Others = {
        "`generate`": ("≥2×", lambda prompts, _: generate(bare.model, prompts)),
        "`generate` with logprobs": ("", lambda prompts, _: generate_scored(bare.model, prompts)),
        "the engine alone": ("", lambda prompts, seed: bare.engine.sample(prompts, NEW, seed)),
    }
    return [row for count in AT_ONCE for row in _samples(clients, bare, rounds, count, others)]


def tuned(clients: dict[str, SdkClient], bare: Bare, rounds: int) -> list[Row]:
    """The same from weights that were trained: an adapter beside the model on both sides."""
    for client in clients.values():
        client.ask("tuned")
    model = bare.peft.evaluating()
    others: Others = {
        "transformers + PEFT": ("≥2×", lambda prompts, _: generate_scored(model, prompts))
    }
    rows = [row for count in AT_ONCE for row in _samples(clients, bare, rounds, count, others)]
    return [replace(row, what=row.what.replace("at once", "of a run at once")) for row in rows]


def _samples(
    clients: dict[str, SdkClient], bare: Bare, rounds: int, at_once: int, others: Others
) -> list[Row]:
    """Everybody taking turns; who else there is, with a target and what it does."""
    rates: dict[str, list[float]] = {}
    for round_ in range(rounds + 1):
        for sdk, client in clients.items():
            ((took, came),) = client.ask(
                "samples", rounds=1, at_once=at_once, prompt=PROMPT, new=NEW
            )
            rates.setdefault(sdk, []).append(came / took)
        for name, (_, program) in others.items():
            prompts, begun = bare.tokens(at_once, PROMPT), time.perf_counter()
            came = program(prompts, round_)
            rates.setdefault(name, []).append(came / (time.perf_counter() - begun))
    middle = {name: statistics.median(found[1:]) for name, found in rates.items()}
    return [
        Row(f"{at_once} sample{'s' * (at_once > 1)} at once, {who}, against {name}", middle[sdk],
            "tokens/s", middle[name], higher_is_better=True, target=target)
        for sdk, who in SDKS.items()
        for name, (target, _) in others.items()
    ]  # fmt: skip


def tenants(server: ServedProcess) -> list[Row]:
    """Steps a second of several tenants together, each a process with its own key, against one."""
    rows = []
    with ExitStack() as stack:
        everybody = _tenants(stack, server, max(TENANTS))
        for size in TENANT_STEPS:
            rates = _rates({count: everybody[:count] for count in TENANTS}, size)
            rows += [
                _tenants_row(f"{count} tenants", size, rates[count], rates[1], count)
                for count in TENANTS[1:]
            ]
    return rows


def engines(server: ServedProcess, bare: Bare, rounds: int) -> list[Row]:
    """What `--engines 2` makes of several tenants, against one on the server as it starts by
    itself, and of samples at once, against `generate`."""
    others: Others = {"`generate`": ("≥2×", lambda prompts, _: generate(bare.model, prompts))}
    rows = []
    with ExitStack() as stack:
        two = stack.enter_context(serving("--model", MODEL, "--quiet", "--engines", "2"))
        (alone,), together = _tenants(stack, server, 1), _tenants(stack, two, 2)
        for size in TENANT_STEPS:
            rates = _rates({1: [alone], 2: together}, size)
            rows.append(_tenants_row("2 tenants", size, rates[2], rates[1], 2))
        clients = {sdk: stack.enter_context(SdkClient(sdk, two.url, f"tml-{sdk}")) for sdk in SDKS}
        for client in clients.values():
            client.ask("begin")
        for count in AT_ONCE[1:]:
            rows += _samples(clients, bare, rounds, count, others)
    return [replace(row, what=f"`--engines 2`: {row.what}") for row in rows]


def _tenants(stack: ExitStack, server: ServedProcess, count: int) -> list[SdkClient]:
    found = [
        stack.enter_context(SdkClient("tinkex", server.url, f"tml-tenant-{number}"))
        for number in range(count)
    ]
    for client in found:
        client.ask("begin")
    return found


def _rates(groups: dict[int, list[SdkClient]], size: dict[str, int]) -> dict[int, float]:
    """Steps a second of each group together, the groups taking turns."""
    rates: dict[int, list[float]] = {count: [] for count in groups}
    for _ in range(3):
        for count, group in groups.items():
            for client in group:
                client.tell("steps_for", seconds=TENANT_S, **size)
            rates[count].append(sum(client.answer() for client in group))
    return {count: statistics.median(found) for count, found in rates.items()}


def _tenants_row(who: str, size: dict[str, int], rate: float, one: float, count: int) -> Row:
    what = f"{who}, steps of {size['sequences']}×{size['tokens']}, against one"
    target = "≥1.3×" if count == 2 else ""
    return Row(what, rate, "steps/s", one, higher_is_better=True, target=target)


def mixed(server: ServedProcess, clients: dict[str, SdkClient], rounds: int) -> list[Row]:
    """One sample at a time while another tenant trains without a pause. Many of them, and once
    that tenant is under way: when in its step a sample comes is chance."""
    one = {"at_once": 1, "prompt": PROMPT, "new": NEW, "rounds": MIX_TURNS * rounds}
    rows = []
    with SdkClient("tinkex", server.url, "tml-trainer") as trainer:
        trainer.ask("begin")
        for sdk, client in clients.items():
            alone = [took for took, _ in client.ask("samples", **one)]
            trainer.tell("steps_for", seconds=MIX_S, **STEP)
            time.sleep(SOON_S)
            beside = [took for took, _ in client.ask("samples", **one)]
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
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    rounds, parts = arguments.rounds, arguments.parts
    taken: list[Row] = []
    with ExitStack() as stack:
        server = stack.enter_context(serving("--model", MODEL, "--quiet"))
        bare = Bare(ensure_tiny(MODEL, default_cache({})))
        stack.callback(bare.engine.close)
        clients = {
            sdk: stack.enter_context(SdkClient(sdk, server.url, f"tml-{sdk}")) for sdk in SDKS
        }
        for client in clients.values():
            client.ask("begin")
        work: dict[str, Callable[[], list[Row]]] = {
            "operations": lambda: requests(server) + operations(clients, bare, 5 * rounds),
            "steps": lambda: steps(clients, bare, rounds),
            "samples": lambda: samples(clients, bare, rounds),
            "tuned": lambda: tuned(clients, bare, rounds),
            "mixed": lambda: mixed(server, clients, rounds),
            "memory": lambda: memory(server, clients),
            "tenants": lambda: tenants(server),
            "engines": lambda: engines(server, bare, rounds),
        }
        for part in parts:
            rows = work[part]()
            taken += rows
            if parts != PARTS:  # kept at once: what is cut off loses one part only
                update("front_door", TITLE, rows, NOTE, whole=False)
    if parts == PARTS:
        update("front_door", TITLE, taken, NOTE)


if __name__ == "__main__":
    main()
