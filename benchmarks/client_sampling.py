"""Client CPU per sample call, against the official SDK, on the same server in the same run.

    python benchmarks/client_sampling.py

Each SDK samples in a process of its own; the server runs in another. CPU is user plus system time
of the client process (all its threads) during the calls, divided by their number.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from apart import client_of, server_of

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

CONCURRENT = 128
ROUNDS = 8
REPEATS = 3
IN_FLIGHT = 2000
PROMPT_TOKENS = 256


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(name: str, url: str, concurrent: int, rounds: int) -> dict[str, float]:
    sdk: Any = importlib.import_module(name)
    service = sdk.ServiceClient(base_url=url, api_key="tml-benchmark")
    sampler = await service.create_sampling_client_async(base_model="acme/tiny")
    params = sdk.types.SamplingParams(max_tokens=4)

    async def one(i: int) -> None:
        prompt = sdk.types.ModelInput.from_ints([i, *range(1, PROMPT_TOKENS)])
        answer = await sampler.sample_async(prompt, 1, params)
        first = (i + PROMPT_TOKENS * (PROMPT_TOKENS - 1) // 2) % 50_000
        assert answer.sequences[0].tokens[0] == first, "an answer reached the wrong caller"

    await asyncio.gather(*[one(i) for i in range(min(concurrent, CONCURRENT))])
    cpu, wall = cpu_seconds(), time.perf_counter()
    for _ in range(rounds):
        await asyncio.gather(*[one(i) for i in range(concurrent)])
    calls = concurrent * rounds
    result = {
        "cpu_us": (cpu_seconds() - cpu) / calls * 1e6,
        "wall_us": (time.perf_counter() - wall) / calls * 1e6,
    }
    await service.close("success")
    return result


def serve() -> None:
    from support.protocol_server import ProtocolServer

    with ProtocolServer() as server:
        print(server.url, flush=True)
        sys.stdin.read()


def main() -> None:
    with server_of(__file__) as url:
        runs: dict[str, list[dict[str, float]]] = {"tinker": [], "tinkex": []}
        for _ in range(REPEATS):  # interleaved, so that both see the same machine
            for name in runs:
                runs[name].append(client_of(__file__, name, url, str(CONCURRENT), str(ROUNDS)))
        many = {name: client_of(__file__, name, url, str(IN_FLIGHT), "1") for name in runs}
    publish(runs, many)


def publish(runs: dict[str, list[dict[str, float]]], many: dict[str, dict[str, float]]) -> None:
    from report import Row, write

    def middle(sdk: str, what: str) -> float:
        return median(run[what] for run in runs[sdk])

    write(
        "client_sampling",
        "Client cost of a sample",
        [
            Row(
                f"client CPU per call, {CONCURRENT} in flight",
                middle("tinkex", "cpu_us"),
                "µs",
                against=middle("tinker", "cpu_us"),
                target="at least 2×",
            ),
            Row(
                f"wall time per call, {CONCURRENT} in flight",
                middle("tinkex", "wall_us"),
                "µs",
                against=middle("tinker", "wall_us"),
            ),
            Row(
                f"client CPU per call, {IN_FLIGHT} in flight",
                many["tinkex"]["cpu_us"],
                "µs",
                against=many["tinker"]["cpu_us"],
                target="completes",
            ),
        ],
        note=f"{PROMPT_TOKENS}-token prompts against one protocol server in its own process; "
        f"medians of {REPEATS} client processes for each SDK, taking turns, {ROUNDS} rounds each. "
        "CPU is user plus system time of the client process. The alternative is tinker.",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve()
    elif sys.argv[1:2] == ["--client"]:
        _, _, sdk_name, address, width, count = sys.argv
        print(json.dumps(asyncio.run(measure(sdk_name, address, int(width), int(count)))))
    else:
        main()
