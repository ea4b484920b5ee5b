"""What the server itself costs, with an engine that answers at once.

    python benchmarks/server_overhead.py

A real server process on loopback, set up as `tinkex serve` does it, durable as always, over a
worker that computes nothing. Measured from one client over plain HTTP: the time from submitting a
forward-backward with a 1 MB body until its result is here; heartbeats while 2,000 polls wait; small
sample requests accepted per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, write

from tinkex.engine.messages import (
    Command,
    CreateRun,
    Done,
    Event,
    ForwardBackward,
    ForwardBackwardResult,
    OptimStep,
    OptimStepResult,
    Ready,
    Result,
    RunInfo,
    Sample,
    SampleResult,
    SaveResult,
    SaveRun,
)
from tinkex.engine.messages import Sequence as Sampled

MODEL = "none/none"
KEY = "tml-benchmark"
OPERATIONS = 300
POLLS = 2000
HEARTBEATS = 300
SAMPLES = 3000
SAMPLERS = 64
NEVER = 4095


class InstantWorker:
    """Answers everything at once, in the right shape; a sample of `NEVER` tokens waits."""

    def __init__(self, _: object) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def start(self, _: object) -> Ready:
        return Ready("None", 1000, 4096, 0, "cpu", "float32", 128)

    async def send(self, command: Command) -> None:
        if not (isinstance(command, Sample) and command.params.max_tokens == NEVER):
            self._events.put_nowait(Done(command.op, _result(command)))

    async def receive(self) -> Sequence[Event]:
        return [await self._events.get()]

    async def stop(self) -> None: ...


def _result(command: Command) -> Result:
    if isinstance(command, CreateRun):
        return RunInfo(command.lora, command.optimizer, 0)
    if isinstance(command, ForwardBackward):
        outputs = tuple({"logprobs": np.zeros(len(d.tokens), np.float32)} for d in command.data)
        return ForwardBackwardResult(outputs, {"loss:sum": 0.0})
    if isinstance(command, OptimStep):
        return OptimStepResult({})
    if isinstance(command, SaveRun):
        Path(command.folder, "adapter_config.json").write_text("{}")
        return SaveResult(0, 2)
    if isinstance(command, Sample):
        tokens = np.zeros(4, np.int32)
        sequence = Sampled(tokens, np.zeros(4, np.float32), "length")
        return SampleResult((sequence,) * command.num_samples)
    return None


def serve(home: str, port: int) -> None:
    import uvicorn

    from tinkex.server.app import create_app
    from tinkex.server.hosting.allocator import keep_freed_memory
    from tinkex.server.hosting.terminal import web_server
    from tinkex.server.settings import ModelSpec, Settings

    settings = Settings(home=Path(home), models=(ModelSpec(MODEL, ""),), port=port)
    keep_freed_memory()
    config = web_server(create_app(settings, InstantWorker))
    config.host, config.port, config.backlog = "127.0.0.1", port, 4096
    # The polls that still wait at the end are cut off; no need to report each.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    uvicorn.Server(config).run()


class Connection:
    """One keep-alive HTTP/1.1 connection, as thin as can be: the server is what is timed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(
        self, path: str, body: bytes, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**22)
        reader, writer = self._streams
        head = (
            f"POST /api/v1/{path} HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\n"
            f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode())
        writer.write(body)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        length = 0
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, await reader.readexactly(length)

    async def call(self, path: str, values: dict[str, Any]) -> dict[str, Any]:
        status, body = await self.post(path, json.dumps(values).encode())
        assert status == 200, (path, status, body)
        answer: dict[str, Any] = json.loads(body)
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def operations(port: int) -> list[float]:
    """Seconds from submitting a 1 MB forward-backward until its result is here."""
    from tinkex.types.datum import Datum
    from tinkex.types.model_input import ModelInput
    from tinkex.wire.protobuf import encode_forward_backward

    connection = Connection(port)
    session = (await connection.call("create_session", {}))["session_id"]
    body: dict[str, Any] = {"session_id": session, "model_seq_id": 0, "base_model": MODEL}
    made = await connection.call("create_model", {**body, "lora_config": {"rank": 8}})
    model = made["model_id"]
    await connection.call("retrieve_future", {"request_id": made["request_id"]})
    rng = np.random.default_rng(0)
    seconds = []
    for seq in range(1, OPERATIONS + 1):
        data = []
        for _ in range(32):
            tokens = rng.integers(0, 50_000, 2048)
            inputs = {
                "target_tokens": tokens.astype(np.int64),
                "weights": np.ones(2048, np.float32),
            }
            data.append(
                Datum(model_input=ModelInput.from_ints(tokens.tolist()), loss_fn_inputs=inputs)
            )
        payload = encode_forward_backward(model, seq, data, "cross_entropy")
        started = time.perf_counter()
        status, answer = await connection.post(
            "forward_backward", payload, "application/x-protobuf"
        )
        assert status == 200, answer
        poll = json.dumps({"request_id": json.loads(answer)["request_id"]}).encode()
        status, answer = await connection.post("retrieve_future", poll)
        assert status == 200, answer
        seconds.append(time.perf_counter() - started)
    print(f"body {len(payload)} bytes, result {len(answer)} bytes")
    connection.close()
    return seconds


def sample(sampler: str, seq: int, max_tokens: int) -> bytes:
    return json.dumps(
        {
            "sampling_session_id": sampler,
            "seq_id": seq,
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(range(100))}]},
            "sampling_params": {"max_tokens": max_tokens, "temperature": 1.0},
            "type": "sample",
        }
    ).encode()


async def sampler_of(connection: Connection) -> tuple[str, str]:
    session = (await connection.call("create_session", {}))["session_id"]
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL}
    return session, (await connection.call("create_sampling_session", body))["sampling_session_id"]


async def heartbeats(port: int) -> list[float]:
    """Seconds per heartbeat while many polls wait."""
    connection = Connection(port)
    session, sampler = await sampler_of(connection)
    waiting = [Connection(port) for _ in range(POLLS)]

    async def wait(number: int) -> None:
        await waiting[number].post("asample", sample(sampler, number, NEVER))
        poll = json.dumps({"request_id": f"{sampler}:{number}"}).encode()
        while True:
            status, _ = await waiting[number].post("retrieve_future", poll)
            assert status == 408

    tasks = [asyncio.create_task(wait(number)) for number in range(POLLS)]
    await asyncio.sleep(8)
    seconds = []
    for _ in range(HEARTBEATS):
        started = time.perf_counter()
        await connection.call("session_heartbeat", {"session_id": session})
        seconds.append(time.perf_counter() - started)
        await asyncio.sleep(0.02)
    for task in tasks:
        assert not task.done(), task.exception()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in [connection, *waiting]:
        each.close()
    return seconds


async def accepted(port: int) -> float:
    """Small samples accepted per second from one client with many connections."""
    connection = Connection(port)
    _, sampler = await sampler_of(connection)
    connections = [Connection(port) for _ in range(SAMPLERS)]
    numbers = iter(range(SAMPLES))

    async def submit(each: Connection) -> None:
        for number in numbers:
            status, answer = await each.post("asample", sample(sampler, number, 4))
            assert status == 200, answer

    started = time.perf_counter()
    await asyncio.gather(*(submit(each) for each in connections))
    rate = SAMPLES / (time.perf_counter() - started)
    for each in [connection, *connections]:
        each.close()
    return rate


async def ready(port: int) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        writer.write(b"GET /api/v1/healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        line = await reader.readline()
        writer.close()
        if b" 200 " in line:
            return


async def measure(port: int) -> None:
    await ready(port)
    overhead = await operations(port)
    rate = await accepted(port)
    beats = await heartbeats(port)
    write(
        "server_overhead",
        "What the server costs, engine excluded",
        [
            Row(
                "1 MB operation, submit to result, median",
                _ms(statistics.median(overhead)),
                "ms",
                target="≤5 ms",
            ),
            Row(
                "1 MB operation, submit to result, p99", _ms(_p99(overhead)), "ms", target="≤20 ms"
            ),
            Row(
                f"heartbeat with {POLLS} waiting polls, p99",
                _ms(_p99(beats)),
                "ms",
                target="≤50 ms",
            ),
            Row("small samples accepted", rate, "/s", higher_is_better=True, target="≥500/s"),
        ],
    )


def _ms(seconds: float) -> float:
    return seconds * 1000


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2, metavar=("HOME", "PORT"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=8766)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], int(options.serve[1]))
        return
    # Not in /tmp: where that is memory, a sync costs nothing and the figure would be too good.
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as home:
        command = [sys.executable, __file__, "--serve", home, str(options.port)]
        with subprocess.Popen(command) as server:
            try:
                asyncio.run(measure(options.port))
            finally:
                server.terminate()
                server.wait()


if __name__ == "__main__":
    main()
