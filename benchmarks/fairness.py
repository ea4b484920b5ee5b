"""Who waits for whom, as users get it: `tinkex serve` and its clients as processes of their own.

    python benchmarks/fairness.py [SECONDS] [MODEL] [sharing] [crowd]

With the official SDK and with ours, on one server: a sample alone and beside a trainer that awaits
every result, with one micro-batch in a step and with many; that trainer's steps, alone and beside
the samples; a one-token sample of one tenant while another has asked for 4 × 64 × 4,000 tokens, or
has 16 long prompts scored; and how long after a client was killed its samples leave the engine.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from report import Row, write

SDKS = ("tinker", "tinkex")
Times: TypeAlias = list[tuple[float, float]]
Windows: TypeAlias = Sequence[tuple[float, float]]
Measure: TypeAlias = Callable[[str, tuple[str, str], float], Iterator[Row]]
SHAPES = {"one micro-batch": 8, "many micro-batches": 64}
LENGTH = 128
PATIENCE_S = 40.0
GONE_LIMIT_S = 75.0
FLOODS = {4: "4 × 64 × 4,000 tokens", 16: "128 scored prompts of 4,000"}
NOTE = """
The alternative of a sample or a step is the same one alone. `tinker` is the official SDK, `tinkex`
ours; each client is a process. Samples of 64 tokens one after the other, steps of 8 × 128 or
64 × 128 tokens and an optimizer step, each result awaited. Times that reach 40,000 ms or end as inf
were given up.
"""


# ---- what the clients do, each in a process of its own


def train(sdk: Any, service: Any, model: str, seconds: float, sequences: int) -> Times:
    """Steps, each result awaited before the next is asked for."""
    types = sdk.types
    client = service.create_lora_training_client(model, rank=8, seed=1)
    tokens = [(7 * i) % 100 for i in range(LENGTH + 1)]
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * LENGTH},
    )

    def step() -> None:
        client.forward_backward([datum] * sequences, "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=1e-4)).result()

    return timed(step, seconds)


def sample(sdk: Any, service: Any, model: str, seconds: float, tokens: int) -> Times:
    """Samples one after the other."""
    client = service.create_sampling_client(base_model=model)
    prompt = sdk.types.ModelInput.from_ints(list(range(1, 33)))
    params = sdk.types.SamplingParams(max_tokens=tokens, stop=[], temperature=1.0)

    def one() -> None:
        with contextlib.suppress(TimeoutError):
            client.sample(prompt, 1, params).result(timeout=PATIENCE_S)

    return timed(one, seconds)


def flood(sdk: Any, service: Any, model: str, seconds: float, requests: int) -> Times:
    """As much as one tenant can ask for: long samples, or long prompts to be scored."""
    client = service.create_sampling_client(base_model=model)
    types = sdk.types
    if requests <= 4:
        prompt = types.ModelInput.from_ints(list(range(1, 33)))
        params = types.SamplingParams(max_tokens=4000, stop=[])
        futures = [client.sample(prompt, 64, params) for _ in range(requests)]
    else:
        prompts = [
            types.ModelInput.from_ints([(i * k) % 120 for i in range(4000)])
            for k in range(1, requests + 1)
        ]
        params = types.SamplingParams(max_tokens=1)
        ask = {"include_prompt_logprobs": True, "topk_prompt_logprobs": 20}
        futures = [client.sample(prompt, 1, params, **ask) for prompt in prompts * 8]
    time.sleep(seconds)
    return [(0.0, float(len(futures)))]


def timed(work: Callable[[], None], seconds: float) -> Times:
    """When each began and what it took, after the first; the first if that was too much.
    Ends early at a SIGTERM."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    found = [_one(work)]
    print("going", flush=True)
    end = time.time() + seconds
    while found[0][1] < PATIENCE_S and time.time() < end and not stopped.is_set():
        found.append(_one(work))
    return found[1:] or found


def _one(work: Callable[[], None]) -> tuple[float, float]:
    begun, started = time.time(), time.perf_counter()
    work()
    return begun, time.perf_counter() - started


ROLES = {"train": train, "sample": sample, "flood": flood}


def client_main(role: str, sdk_name: str, url: str, model: str, seconds: str, size: str) -> None:
    sdk = importlib.import_module(sdk_name)
    importlib.import_module(f"{sdk_name}.types")
    service = sdk.ServiceClient(base_url=url, api_key=f"tml-{role}-{size}")
    if role == "flood":
        print("going", flush=True)
    print(json.dumps(ROLES[role](sdk, service, model, float(seconds), int(size))), flush=True)
    os._exit(0)


# ---- the server and the measurements


class Client:
    """A client process; `times` waits for its measurements."""

    def __init__(self, role: str, sdk: str, where: tuple[str, str], seconds: float, size: int):
        arguments = [sys.executable, __file__, role, sdk, *where, str(seconds), str(size)]
        environ = {**os.environ, "TINKER_TELEMETRY": "0", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environ)
        assert self.process.stdout is not None
        self._lines = self.process.stdout
        self._lines.readline()

    def times(self) -> Times:
        found: Times = json.loads(self._lines.read().strip().splitlines()[-1])
        self.process.wait()
        return found

    def stop(self) -> Times:
        """What it measured until now."""
        self.process.terminate()
        return self.times()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def serving(model: str) -> Iterator[str]:
    """`tinkex serve` on a home of its own; gives its address."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "tinkex", "serve", "--model", model]
        server = subprocess.Popen(
            [*command, "--port", "0", "--home", home], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        found = None
        while found is None:
            found = re.search(r"http://[0-9.]+:\d+", server.stdout.readline())
        try:
            yield found.group()
        finally:
            server.terminate()
            server.wait(30)


def mean_ms(times: Times, windows: Windows = ((0.0, math.inf),)) -> float:
    """Of those that lie within these windows, but for a fifth of them."""
    found = [
        took
        for begun, took in times
        if any(min(begun + took, end) - max(begun, start) >= 0.8 * took for start, end in windows)
    ]
    return 1000 * statistics.mean(found) if found else math.nan


def sharing(sdk: str, where: tuple[str, str], seconds: float) -> Iterator[Row]:
    """Both, one and the other at work in turns, so that what else the machine does hits all."""
    for shape, sequences in SHAPES.items():
        clients = {
            "train": Client("train", sdk, where, 600.0, sequences),
            "sample": Client("sample", sdk, where, 600.0, 64),
        }
        windows = phases(clients, seconds * (1 if sequences < 16 else 3))
        found = {role: client.stop() for role, client in clients.items()}
        together = windows["train", "sample"]
        sampled, trained = found["sample"], found["train"]
        yield Row(f"{sdk}: 64 tokens beside a trainer, {shape}", mean_ms(sampled, together), "ms",
                  mean_ms(sampled, windows["sample",]), target="≤2.2×")  # fmt: skip
        yield Row(f"{sdk}: a step of that trainer, {shape}", mean_ms(trained, together), "ms",
                  mean_ms(trained, windows["train",]), target="≥45 % kept")  # fmt: skip


def phases(
    clients: dict[str, Client], seconds: float
) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """When which of the clients were awake: all, then each alone, three times."""
    windows: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for awake in [tuple(clients), *((role,) for role in clients)] * 3:
        for role, client in clients.items():
            client.process.send_signal(signal.SIGCONT if role in awake else signal.SIGSTOP)
        begun = time.time()
        time.sleep(seconds)
        windows.setdefault(awake, []).append((begun, time.time()))
    for client in clients.values():
        client.process.send_signal(signal.SIGCONT)
    return windows


def crowd(sdk: str, where: tuple[str, str], seconds: float, requests: int) -> Iterator[Row]:
    alone = mean_ms(Client("sample", sdk, where, 2.0, 1).times())
    greedy = Client("flood", sdk, where, 600.0, requests)
    time.sleep(3.0)
    probe = mean_ms(Client("sample", sdk, where, seconds, 1).times())
    yield Row(f"{sdk}: one token beside {FLOODS[requests]}", probe, "ms", alone)
    greedy.kill()
    yield Row(f"{sdk}: their end after that client's death", freed(where[0]), "s")


def freed(url: str) -> float:
    """Seconds until no sample is in flight."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < GONE_LIMIT_S:
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            text = answer.read().decode()
        if re.search(r"^tinkex_samples_in_flight 0$", text, re.MULTILINE):
            return time.perf_counter() - begun
        time.sleep(0.25)
    return float("inf")


PARTS: dict[str, tuple[Measure, ...]] = {
    "sharing": (sharing,),
    "crowd": tuple(partial(crowd, requests=number) for number in FLOODS),
}


def main(seconds: str = "2", model: str = "tinkex/tiny-llama", *parts: str) -> None:
    # Whoever ends this must not leave a server at work behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rows: list[Row] = []
    for sdk in SDKS:
        for measure in [each for part in parts or PARTS for each in PARTS[part]]:
            with serving(model) as url:
                for row in measure(sdk, (url, model), float(seconds)):
                    print(row.cells(), file=sys.stderr, flush=True)
                    rows.append(row)
    name = "_".join(["fairness", *parts])
    write(name, f"Who waits for whom ({model})", rows, NOTE)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ROLES:
        client_main(*sys.argv[1:])
    else:
        main(*sys.argv[1:])
