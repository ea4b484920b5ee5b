"""Attacks of one tenant through the front door, and what its neighbour notices of them.

    python benchmarks/attacks.py [SDK ...]

`tinkex serve` is a process, the attacker and the neighbour are processes with keys of their own.
The neighbour makes steps (or one-token samples), each result awaited: alone, and during each
attack, which is repeated for some seconds. What the attacker got is the outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from report import write_table
from served_process import serving

MODEL = "tinkex/tiny-llama"
SDKS = ("tinker", "tinkex")
Times: TypeAlias = list[tuple[float, float]]
Loss: TypeAlias = Callable[[Any], Any]
ALONE_S = 2.0
ATTACK_S = 3.0
PATIENCE_S = 60.0
LENGTH = 32
HEADINGS = ("what", "neighbour alone", "neighbour during", "outcome for the attacker")
NOTE = """
The neighbour's figures are median / longest in milliseconds (how many). Its steps are 4 × 32 tokens
and an optimizer step, with the SDK that the attacker does not use. In brackets before each outcome:
how often the attack was made; the outcome is that of the first. The attacker's own process shares
the processors.
"""


# ---- what the attacker does: each gives what came of it in words


class Attacker:
    """One tenant with one run."""

    def __init__(self, sdk: Any, service: Any) -> None:
        self.sdk = sdk
        self.service = service
        self._run: Any = None
        self._handle: Any = None

    @property
    def run(self) -> Any:
        if self._run is None:
            self._run = self.service.create_lora_training_client(MODEL, rank=8, seed=1)
        return self._run

    def datum(self, **inputs: list[float]) -> Any:
        tokens = [(7 * i) % 100 for i in range(LENGTH + 1)]
        return self.sdk.types.Datum(
            model_input=self.sdk.types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"target_tokens": tokens[1:], **inputs},
        )

    def plain(self) -> Any:
        return self.datum(weights=[1.0] * LENGTH)

    def custom(self, loss: Loss, datums: int = 1) -> str:
        """A traced loss is uploaded, once, and used."""
        if self._handle is None:
            self._handle = self.service.create_custom_loss(loss, {"logprobs": 1}).result()
        self.run.forward_backward_custom([self.datum()] * datums, self._handle).result()
        return "evaluated"

    def creations(self) -> str:
        async def all_at_once() -> list[Any]:
            make = self.service.create_lora_training_client_async
            return await asyncio.gather(*(make(MODEL, rank=4, seed=i) for i in range(256)))

        made = asyncio.run(all_at_once())
        made[-1].forward_backward([self.plain()], "cross_entropy").result()
        return f"{len(made)} runs made, and a step in the last"

    def long_samples(self) -> str:
        types = self.sdk.types
        client = self.service.create_sampling_client(base_model=MODEL)
        params = types.SamplingParams(max_tokens=4000, stop=[])
        prompt = types.ModelInput.from_ints(list(range(1, 33)))
        asked = [client.sample(prompt, 64, params) for _ in range(4)]
        time.sleep(2 * ATTACK_S)
        done = sum(future.done() for future in asked)
        return f"{len(asked)} requests asked, {done} ended after {2 * ATTACK_S:.0f} s"

    def huge_rate(self) -> str:
        types = self.sdk.types
        self.run.forward_backward([self.plain()], "cross_entropy").result()
        said = told(lambda: self.run.optim_step(types.AdamParams(learning_rate=1e38)).result())
        self.run.optim_step(types.AdamParams(learning_rate=1e-4)).result()
        loss = self.run.forward([self.plain()], "cross_entropy").result().metrics["loss:sum"]
        return f"{said}; then a step of 1e-4 works, loss {loss:.2f}"


def on_meta(logprobs: Any) -> Any:
    return logprobs.to("meta").sum(), {}


def in_place(logprobs: Any) -> Any:
    torch = importlib.import_module("torch")
    return torch.nn.functional.hardtanh(logprobs, 0.0, 0.5, True).sum(), {}


def dividing(logprobs: Any) -> Any:
    torch = importlib.import_module("torch")
    far = torch.div(torch.full_like(logprobs, -1e19).long(), -1, rounding_mode="trunc")
    return (far.double() * logprobs).sum(), {}


def reading(logprobs: Any) -> Any:
    total = logprobs.sum()
    many = total.reshape(1).expand(1 << 22) + total
    for _ in range(1500):
        total = total + many.logsumexp(0)
    return total, {}


def cheap(logprobs: Any) -> Any:
    for _ in range(50):
        logprobs = logprobs.exp().log()
    return logprobs.sum(), {}


def mask_and_list(logprobs: Any) -> Any:
    ones = logprobs.sum().reshape(1, 1).expand(4, 4) * 1.0
    return ones[ones < 9, [[0] * 250] * 250].sum(), {}


ATTACKS: dict[str, Callable[[Attacker], str]] = {
    "B1 256 runs created at once": Attacker.creations,
    'B2 loss on the device "meta"': lambda one: one.custom(on_meta),
    "B2 loss in place, hardtanh": lambda one: one.custom(in_place),
    "B3 loss that divides −2⁶³ by −1": lambda one: one.custom(dividing),
    "B4 loss of 1,500 sums over 4 Mi cells": lambda one: one.custom(reading),
    "B4 loss of 100 nodes, 512 datums": lambda one: one.custom(cheap, 512),
    "B5 loss with a mask beside a nested list": lambda one: one.custom(mask_and_list),
    "B7 4 × 64 × 4,000 tokens": Attacker.long_samples,
    "B10 learning_rate=1e38, then 1e-4": Attacker.huge_rate,
}
ONCE = ("B1", "B7")


def told(attempt: Callable[[], Any]) -> str:
    """What came of it, in one line."""
    try:
        return str(attempt())
    except Exception as error:
        text = " ".join(str(error).split())
        return f"{type(error).__name__}: {text[:150]}"


def attack(sdk: Any, service: Any, name: str) -> tuple[int, str]:
    attacker = Attacker(sdk, service)
    end = time.time() + ATTACK_S
    times, said = 0, ""
    while times == 0 or (time.time() < end and not name.startswith(ONCE)):
        latest = told(lambda: ATTACKS[name](attacker))
        said, times = said or latest, times + 1
    return times, said


# ---- the neighbour


def work_of(sdk: Any, service: Any, role: str) -> Callable[[], Any]:
    types = sdk.types
    if role == "sample":
        sampler = service.create_sampling_client(base_model=MODEL)
        prompt = types.ModelInput.from_ints(list(range(1, 33)))
        params = types.SamplingParams(max_tokens=1, stop=[])
        return lambda: sampler.sample(prompt, 1, params).result()
    run = service.create_lora_training_client(MODEL, rank=8, seed=1)
    datum = Attacker(sdk, service).plain()

    def step() -> None:
        run.forward_backward([datum] * 4, "cross_entropy").result()
        run.optim_step(types.AdamParams(learning_rate=1e-4)).result()

    return step


def live(work: Callable[[], Any]) -> Times:
    """When each piece of work began and how long it took, until SIGTERM."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    work()
    print("going", flush=True)
    found = []
    while not stopped.is_set():
        begun = time.time()
        work()
        found.append((begun, time.time() - begun))
    return found


# ---- processes


def child_main(role: str, what: str, sdk_name: str, url: str) -> None:
    sdk = importlib.import_module(sdk_name)
    importlib.import_module(f"{sdk_name}.types")
    # A key for each attack: the first uses up all the runs that one may have.
    number = list(ATTACKS).index(what) if what in ATTACKS else what
    service = sdk.ServiceClient(base_url=url, api_key=f"tml-{role}-{number}")
    found = attack(sdk, service, what) if role == "attack" else live(work_of(sdk, service, what))
    print(json.dumps(found), flush=True)
    os._exit(0)


def child(*arguments: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "TINKER_TELEMETRY": "0", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)


def answer(process: subprocess.Popen[str], patience_s: float = PATIENCE_S) -> Any:
    try:
        return json.loads(process.communicate(timeout=patience_s)[0].strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()


@contextmanager
def neighbour(role: str, sdk: str, url: str) -> Iterator[Times]:
    """At work while the block lasts; its times are there afterwards."""
    process = child("live", role, sdk, url)
    times: Times = []
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield times
        process.terminate()
        times.extend(answer(process) or [])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def within(times: Times, start: float, end: float) -> str:
    """Median and longest of those that overlap with a stretch of time, in ms."""
    found = [1000 * took for begun, took in times if begun < end and begun + took > start]
    if not found:
        return "nothing"
    return f"{statistics.median(found):.0f} / {max(found):.0f} ({len(found)})"


def walk(sdk: str, url: str, name: str) -> tuple[str, ...]:
    """One attack beside a neighbour."""
    other = SDKS[1 - SDKS.index(sdk)]
    role = "sample" if name.startswith("B7") else "step"
    with neighbour(role, other, url) as times:
        started = time.time()
        time.sleep(ALONE_S)
        begun = time.time()
        found = answer(child("attack", name, sdk, url))
        ended = time.time()
    outcome = f"no answer in {PATIENCE_S:.0f} s" if found is None else f"({found[0]}) {found[1]}"
    unit = {"sample": "a token", "step": "a step"}[role]
    alone, during = within(times, started, begun), within(times, begun, ended)
    return f"{sdk}: {name}", f"{unit} {alone}", during, outcome.replace("|", "\\|")


def main(*sdks: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rows: list[Sequence[str]] = []
    for sdk in sdks or SDKS:
        with serving("--model", MODEL, "--quiet") as server:
            for name in ATTACKS:
                rows.append(walk(sdk, server.url, name))
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    write_table("attacks", f"Attacks through the front door ({MODEL})", HEADINGS, rows, NOTE)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("attack", "live"):
        child_main(*sys.argv[1:])
    else:
        main(*sys.argv[1:])
