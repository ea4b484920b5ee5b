"""Samplers and trainers at once, for minutes: errors, the server's memory, heartbeats.

    python benchmarks/soak.py [SECONDS] [SAMPLERS] [TRAINERS]

Ten minutes with 64 samplers and 8 trainers is `python benchmarks/soak.py 600`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx
from report import Row, write

import tinkex
from support.guarantee_data import batch
from support.server_process import MODEL, ServerProcess
from tinkex import types
from tinkex.server.engines.model_sources import default_cache, resolve

PAGE = os.sysconf("SC_PAGE_SIZE")


class Soak:
    """What happened so far."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.steps = self.samples = 0
        self.errors: list[str] = []
        self.beats: list[float] = []
        self.memory: list[tuple[float, float, float]] = []

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end

    async def guarded(self, work: Any) -> None:
        try:
            await work
        except Exception as error:
            self.errors.append(repr(error))

    async def train(self, service: Any, number: int) -> None:
        client = await service.create_lora_training_client_async(MODEL, rank=8, seed=number)
        while not self.over:
            forward = await client.forward_backward_async(batch(self.steps, 2), "cross_entropy")
            update = await client.optim_step_async(types.AdamParams(learning_rate=1e-4))
            await forward
            await update
            self.steps += 1

    async def sample(self, sampler: Any, number: int) -> None:
        prompt = types.ModelInput.from_ints(list(range(1, 20 + number % 30)))
        params = types.SamplingParams(max_tokens=16, temperature=1.0)
        while not self.over:
            await sampler.sample_async(prompt, 1, params)
            self.samples += 1

    async def beat(self, url: str, session: str) -> None:
        async with httpx.AsyncClient(base_url=url, headers={"x-api-key": "tml-soak"}) as client:
            while not self.over:
                begun = time.perf_counter()
                body = {"session_id": session}
                answer = await client.post("/api/v1/session_heartbeat", json=body, timeout=30)
                answer.raise_for_status()
                self.beats.append(time.perf_counter() - begun)
                await asyncio.sleep(0.25)

    async def watch(self, server: int, engine: list[int]) -> None:
        while not self.over:
            used = _resident(server), sum(map(_resident, engine))
            self.memory.append((time.monotonic(), *used))
            await asyncio.sleep(2.0)


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * PAGE / 2**20


async def soak(server: ServerProcess, seconds: float, samplers: int, trainers: int) -> Soak:
    found = Soak(seconds)
    async with httpx.AsyncClient(base_url=server.url, headers={"x-api-key": "tml-soak"}) as client:
        made = await client.post("/api/v1/create_session", json={"tags": [], "user_metadata": {}})
    assert server._process is not None
    pids = server._process.pid, server._children()
    with tinkex.ServiceClient(base_url=server.url, api_key="tml-soak") as service:
        sampler = await service.create_sampling_client_async(base_model=MODEL)
        work = [found.train(service, number) for number in range(trainers)]
        work += [found.sample(sampler, number) for number in range(samplers)]
        work += [found.beat(server.url, made.json()["session_id"]), found.watch(*pids)]
        await asyncio.gather(*(found.guarded(one) for one in work))
    return found


def main(seconds: float = 180.0, samplers: int = 64, trainers: int = 8) -> None:
    model = resolve(MODEL, default_cache(os.environ), os.environ).folder
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder) / "home", model, snapshot_steps=50)
        server.start()
        server.wait_ready()
        try:
            found = asyncio.run(soak(server, seconds, samplers, trainers))
        finally:
            server.kill()
    settled = found.memory[len(found.memory) // 3 :]
    times, server_mib, engine_mib = zip(*settled, strict=True)
    slope = statistics.linear_regression(times, server_mib).slope * 60
    beats = sorted(found.beats)
    rows = [
        Row("errors", float(len(found.errors)), "", target="0"),
        Row("training steps", float(found.steps), ""),
        Row("samples", float(found.samples), ""),
        Row("server memory at the end", server_mib[-1], "MiB"),
        Row("server memory slope over the last two thirds", slope, "MiB/min", target="≈0"),
        Row("engine memory, a third in", engine_mib[0], "MiB"),
        Row("engine memory at the end", engine_mib[-1], "MiB"),
        Row("heartbeat p50", 1e3 * beats[len(beats) // 2], "ms"),
        Row("heartbeat p99", 1e3 * beats[int(len(beats) * 0.99)], "ms", target="≤50 ms"),
    ]
    note = (
        f"{samplers} samplers and {trainers} trainers on the tiny model for {seconds:.0f} s. The "
        "engine's memory grows while the pages of its cache, a fixed pool, are first used."
    )
    write("soak", "Soak", rows, "\n\n".join([note, *sorted(set(found.errors))[:3]]))


if __name__ == "__main__":
    main(*(float(sys.argv[1]),) if len(sys.argv) > 1 else (), *map(int, sys.argv[2:]))
