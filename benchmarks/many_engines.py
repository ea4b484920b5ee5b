"""N engines on N cores against one engine on one, as users get it: `tinkex serve --engines N`.

    python benchmarks/many_engines.py [SECONDS] [MODEL] [SDK]

For each engine two runs train at once, each result awaited, and then sixteen prompts are sampled at
once, by one client process. Client, server and engine of the alternative have one core between
them, those of two engines two. Two more rows give one engine both cores: there client and server
work beside it, and what a second engine adds is what they leave. All are started first and then
take turns, SECONDS each.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from report import Row, write
from served_process import ServedProcess, machine, processor_s, serving

RUNS, SEQUENCES, LENGTH = 2, 8, 128
PROMPTS, NEW = 16, 64
"""Runs and prompts are for each engine: half a batch takes a small model nearly as long."""
SHAPES = ((1, 1), (1, 2), (2, 2))
"""Engines and cores."""
KINDS = ("training", "sampling")
ROUNDS, MOST_ROUNDS = 4, 9
LEAD_S, OTHERS = 0.7, 0.05
NOTE = f"""
The alternative is one engine of one thread with the same work and all processes on one core, or on
both where a row says so. For each engine: {RUNS} runs of {SEQUENCES} × {LENGTH} tokens and an
optimizer step, each result awaited; {PROMPTS} samples of up to {NEW} tokens at a time. They take
turns, and medians of turns are given. Steps of a run are counted from the start of the second one
to the start of the last. Samples are counted if they end in the measured time, with as many under
way before and after. A turn in which other processes took more than {OTHERS:.0%} of both cores does
not count, because the alternative leaves them a core and two engines do not.
"""


def train(sdk: Any, clients: list[Any], seconds: float) -> float:
    """Tokens a second of several runs, each awaiting its own results."""
    datum = _datum(sdk)
    rates = [0.0] * len(clients)
    begin = threading.Barrier(len(clients))

    def live(number: int) -> None:
        begin.wait()
        end, begun = time.monotonic() + LEAD_S + seconds, []
        while (now := time.monotonic()) < end or len(begun) < 3:
            _step(sdk, clients[number], datum)
            begun.append(now)
        rates[number] = SEQUENCES * LENGTH * (len(begun) - 2) / (begun[-1] - begun[1])

    threads = [threading.Thread(target=live, args=(number,)) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def _datum(sdk: Any) -> Any:
    tokens = [(7 * i) % 100 for i in range(LENGTH + 1)]
    return sdk.types.Datum(
        model_input=sdk.types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * LENGTH},
    )


def _step(sdk: Any, client: Any, datum: Any) -> None:
    call = client.forward_backward([datum] * SEQUENCES, "cross_entropy")
    update = client.optim_step(sdk.types.AdamParams(learning_rate=1e-4))
    call.result()
    update.result()


def sample(sdk: Any, client: Any, seconds: float, prompts: int) -> float:
    """Tokens a second of many samples at once, of the base model."""
    params = sdk.types.SamplingParams(max_tokens=NEW, temperature=1.0)
    begin = time.monotonic() + LEAD_S
    end = begin + seconds

    async def live(number: int) -> int:
        prompt = sdk.types.ModelInput.from_ints([(number * 31 + i) % 100 for i in range(32)])
        done = 0
        while time.monotonic() < end:
            found = await client.sample_async(prompt, 1, params)
            done += len(found.sequences[0].tokens) * (begin <= time.monotonic() < end)
        return done

    async def all_of() -> int:
        return sum(await asyncio.gather(*(live(number) for number in range(prompts))))

    return asyncio.run(all_of()) / seconds


@dataclass
class Side:
    """A server with its engines, on its cores, and the client process that drives it when told."""

    engines: int
    server: ServedProcess
    client: subprocess.Popen[str]
    rates: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    spent: Counter[str] = field(default_factory=Counter)

    def take_turn(self, kind: str) -> None:
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        before, then = self._busy(), machine()
        self.client.stdin.write(f"{kind}\n")
        self.client.stdin.flush()
        rate = float(self.client.stdout.readline())
        spent = {name: now - before[name] for name, now in self._busy().items()}
        busy, whole = (now - once for now, once in zip(machine(), then, strict=True))
        if busy - sum(spent.values()) <= OTHERS * whole:
            self.rates[kind].append(rate)
            self.spent.update(spent)

    def _busy(self) -> dict[str, float]:
        """Seconds of a processor so far."""
        engines = sum(map(processor_s, self.server.engines))
        mine = {"server": self.server.pid, "client": self.client.pid}
        return {"engines": engines} | {name: processor_s(pid) for name, pid in mine.items()}


@contextmanager
def side(engines: int, cores: int, seconds: float, model: str, sdk: str) -> Iterator[Side]:
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(every)[:cores]))  # for those who are started here
    options = ("--model", model, "--device", "cpu", "--engines", str(engines), "--quiet")
    with serving(*options, "--engine", "threads=1") as server:
        command = [sys.executable, __file__, "client", server.url, model, str(seconds), sdk]
        client = subprocess.Popen(
            [*command, str(engines)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        os.sched_setaffinity(0, every)
        assert client.stdout is not None
        client.stdout.readline()
        yield Side(engines, server, client)
        client.communicate()


def client(url: str, model: str, seconds: float, name: str, engines: int) -> None:
    """Do what each line says, and answer with tokens a second."""
    sdk = importlib.import_module(name)
    service = sdk.ServiceClient(base_url=url, api_key="tml-bench")
    runs = [
        service.create_lora_training_client(model, rank=8, seed=n) for n in range(RUNS * engines)
    ]
    sampler = service.create_sampling_client(base_model=model)
    sample(sdk, sampler, LEAD_S, PROMPTS * engines)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "training":
            print(train(sdk, runs, seconds), flush=True)
        else:
            print(sample(sdk, sampler, seconds, PROMPTS * engines), flush=True)


def main(seconds: float = 3.5, model: str = "tinkex/tiny-llama", sdk: str = "tinkex") -> None:
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        sides = [stack.enter_context(side(*shape, seconds, model, sdk)) for shape in SHAPES]
        for _, kind, each in itertools.product(range(MOST_ROUNDS), KINDS, sides):
            if len(each.rates[kind]) < ROUNDS:
                each.take_turn(kind)
    one, roomy, two = sides
    rows = [row for kind in KINDS for row in rows_of(kind, one, two, "two engines", "≥1.8×")]
    rows += [
        row
        for kind in KINDS
        for row in rows_of(kind, roomy, two, "the alternative on both cores", "")
    ]
    total = sum(two.spent.values())
    parts = ", ".join(f"{name} {spent / total:.0%}" for name, spent in two.spent.items())
    said = f"Of the processors' time with two engines: {parts}. "
    turns = sum(len(each.rates[kind]) for each in sides for kind in KINDS)
    said += f"{turns} of at most {MOST_ROUNDS * len(SHAPES) * len(KINDS)} turns counted. "
    said += f"When it began, {load:.1f} processes wanted the {os.cpu_count()} cores."
    write("many_engines", f"Two engines against one ({model}, {sdk})", rows, NOTE + said)


def rows_of(kind: str, one: Side, two: Side, what: str, target: str) -> list[Row]:
    """The median turns; and the worst of two engines' against the best of one's."""
    median, ours, theirs = statistics.median, two.rates[kind], one.rates[kind]
    worst = f"{kind}, {what}: the worst turn against the best"
    return [
        Row(f"{kind}, {what}", median(ours), "tokens/s", median(theirs), True, target),
        Row(worst, min(ours), "tokens/s", max(theirs), True),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
    else:
        main(*([float(sys.argv[1])] if sys.argv[1:] else []), *sys.argv[2:])
