"""N engines on N cores against one engine on one, as users get it: `tinkex serve --engines N`.

    python benchmarks/many_engines.py [SECONDS] [MODEL] [SDK]

For each engine two runs train at once, each result awaited, and then sixteen prompts are sampled at
once, by one client process. Client, server and engine of the alternative have one core between
them, those of two engines two. Two more rows give one engine both cores: there client and server
work beside it, and what a second engine adds is what they leave.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from report import Row, write
from served_process import ServedProcess, serving

RUNS, SEQUENCES, LENGTH = 2, 8, 128
PROMPTS, NEW = 16, 64
"""Runs and prompts are for each engine: half a batch takes a small model nearly as long."""
NOTE = f"""
The alternative is one engine of one thread with the same work, all processes on one core, or where
it says so on both. For each engine: {RUNS} runs of {SEQUENCES} × {LENGTH} tokens and an optimizer
step, each result awaited; {PROMPTS} samples of {NEW} tokens at a time. Tokens are those of whole
calls that ended in the time measured.
"""


def train(sdk: Any, service: Any, model: str, seconds: float, runs: int) -> float:
    """Tokens a second of several runs, each awaiting its own results."""
    counts = [0] * runs
    clients = [service.create_lora_training_client(model, rank=8, seed=n) for n in range(runs)]
    datum = _datum(sdk)
    begin = threading.Barrier(runs + 1)

    def live(number: int) -> None:
        client = clients[number]
        _step(sdk, client, datum)
        begin.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            _step(sdk, client, datum)
            counts[number] += SEQUENCES * LENGTH * (time.monotonic() < end)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(runs)]
    for thread in threads:
        thread.start()
    begin.wait()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


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


def sample(sdk: Any, service: Any, model: str, seconds: float, prompts: int) -> float:
    """Tokens a second of many samples at once, of the base model."""
    client = service.create_sampling_client(base_model=model)
    params = sdk.types.SamplingParams(max_tokens=NEW, temperature=1.0)

    async def live(number: int, end: float) -> int:
        done = 0
        while time.monotonic() < end:
            prompt = sdk.types.ModelInput.from_ints([(number * 31 + i) % 100 for i in range(32)])
            found = await client.sample_async(prompt, 1, params)
            if time.monotonic() < end:
                done += len(found.sequences[0].tokens)
        return done

    async def all_of(span: float) -> int:
        end = time.monotonic() + span
        return sum(await asyncio.gather(*(live(number, end) for number in range(prompts))))

    asyncio.run(all_of(1.0))
    return asyncio.run(all_of(seconds)) / seconds


def measured(engines: int, cores: int, seconds: float, model: str, sdk: str) -> dict[str, float]:
    """Training and sampling with so many engines, driven by a client of its own process, and the
    parts of the processors' time that client, server and engines took."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(every)[:cores]))  # for those who are started here
    try:
        options = ("--model", model, "--device", "cpu", "--engines", str(engines), "--quiet")
        with serving(*options, "--engine", "threads=1") as server:
            before = _busy(server)
            client = [
                sys.executable,
                __file__,
                "client",
                server.url,
                model,
                str(seconds),
                sdk,
                str(engines),
            ]
            found = subprocess.run(client, check=True, capture_output=True, text=True)
            after = _busy(server)
    finally:
        os.sched_setaffinity(0, every)
    values: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    spent = {name: after[name] - before[name] for name in before} | {"client": values["cpu_s"]}
    total = sum(spent.values())
    return values | {name: seconds / total for name, seconds in spent.items()}


def _busy(server: ServedProcess) -> dict[str, float]:
    """Seconds of a processor so far."""
    return {"server": cpu_s(server.pid), "engines": sum(map(cpu_s, server.engines))}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def client(url: str, model: str, seconds: float, name: str, engines: int) -> None:
    sdk = importlib.import_module(name)
    service = sdk.ServiceClient(base_url=url, api_key="tml-bench")
    trained = train(sdk, service, model, seconds, RUNS * engines)
    sampled = sample(sdk, service, model, seconds, PROMPTS * engines)
    print(json.dumps({"training": trained, "sampling": sampled, "cpu_s": time.process_time()}))


def main(seconds: float = 8.0, model: str = "tinkex/tiny-llama", sdk: str = "tinkex") -> None:
    load = os.getloadavg()[0]
    shapes = ((1, 1), (1, 2), (2, 2))
    one, roomy, two = (measured(*shape, seconds, model, sdk) for shape in shapes)
    kinds = ("training", "sampling")
    rows = [
        *(
            Row(f"{kind}, two engines", two[kind], "tokens/s", one[kind], True, "≥1.8×")
            for kind in kinds
        ),
        *(
            Row(f"{kind}, the alternative on both cores", two[kind], "tokens/s", roomy[kind], True)
            for kind in kinds
        ),
    ]
    parts = ", ".join(f"{name} {two[name]:.0%}" for name in ("engines", "server", "client"))
    said = f"Of the processors' time with two engines: {parts}. "
    said += f"When it began, {load:.1f} processes wanted the {os.cpu_count()} cores."
    write("many_engines", f"Two engines against one ({model}, {sdk})", rows, NOTE + said)


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
    else:
        main(*([float(sys.argv[1])] if sys.argv[1:] else []), *sys.argv[2:])
