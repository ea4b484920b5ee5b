"""Encoding a training batch, and decoding its result, beside the official client's own code.

A batch is 128 datums of 2,048 tokens with target tokens and weights, built from lists as scripts
do. Timings take turns between the two packages; peak memory is measured in processes of their own,
on a batch of about 100 MB.

    python benchmarks/encoding.py [rounds]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from report import Row, write

DATUMS, TOKENS = 128, 2048
MEMORY_DATUMS = 3200


def batch(types: ModuleType, rows: list[list[int]]) -> list[Any]:
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(row[:-1]),
            loss_fn_inputs={"target_tokens": row[1:], "weights": [1.0] * (len(row) - 1)},
        )
        for row in rows
    ]


def encoder(package: str) -> Callable[[list[Any]], bytes]:
    """Datums to the body that is sent, as each client does it."""
    if package == "tinkex":
        from tinkex.wire.protobuf import encode_forward_backward

        return lambda data: encode_forward_backward("run", 1, data, "cross_entropy")
    from tinker import types
    from tinker.proto.request_conv import forward_backward_request_to_proto

    def encode(data: list[Any]) -> bytes:
        content = types.ForwardBackwardInput(data, "cross_entropy")
        request = types.ForwardBackwardRequest(content, "run", 1)
        return bytes(forward_backward_request_to_proto(request).SerializeToString())

    return encode


def types_of(package: str) -> ModuleType:
    return __import__(f"{package}.types", fromlist=["*"])


def turns(rounds: int, programs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds of each program, the programs taking turns."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for program in programs.values():
        program()
    for _ in range(rounds):
        for name, program in programs.items():
            start = time.perf_counter()
            program()
            times[name].append((time.perf_counter() - start) * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def both(make: Callable[[str], Callable[[], object]]) -> dict[str, Callable[[], object]]:
    return {package: make(package) for package in ("tinkex", "tinker")}


def lists(count: int) -> list[list[int]]:
    table = np.random.default_rng(0).integers(0, 150_000, (count, TOKENS + 1))
    rows: list[list[int]] = table.tolist()
    return rows


def decoder(package: str, body: bytes) -> Callable[[], object]:
    if package == "tinkex":
        from tinkex.wire.protobuf import decode_forward_backward_output

        return lambda: decode_forward_backward_output(body)
    from tinker.proto.response_conv import deserialize_forward_backward_output

    return lambda: deserialize_forward_backward_output(body)


def result_body() -> bytes:
    from tinkex.wire.protobuf import encode_forward_backward_output

    outputs = [{"logprobs": np.zeros(TOKENS, np.float32)} for _ in range(DATUMS)]
    return encode_forward_backward_output(outputs, {"loss:sum": 1.0})


def peak_ratio(package: str) -> float:
    """Peak memory added while encoding, over the size of the encoding, in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--memory", package], capture_output=True, text=True, check=True
    )
    ratio: float = json.loads(done.stdout)
    return ratio


def measure_memory(package: str) -> None:
    rows = lists(64)
    data = batch(types_of(package), rows) * (MEMORY_DATUMS // 64)
    encode = encoder(package)
    encode(data[:2])
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before = resident("VmRSS")
    size = len(encode(data))
    print(json.dumps((resident("VmHWM") - before) / size))


def resident(field: str) -> int:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024


def main(rounds: int) -> None:
    rows = lists(DATUMS)
    data = {package: batch(types_of(package), rows) for package in ("tinkex", "tinker")}
    encode = {package: encoder(package) for package in data}
    encoding = turns(rounds, both(lambda name: lambda: encode[name](data[name])))
    building = turns(rounds, both(lambda name: lambda: encode[name](batch(types_of(name), rows))))
    body = result_body()
    decoding = turns(rounds, both(lambda name: decoder(name, body)))
    memory = {package: peak_ratio(package) for package in data}
    write(
        "encoding",
        "Encoding a batch",
        [
            row("encode 128 × 2,048 tokens", encoding, "ms", "at most 10 ms, at least 3×"),
            row("build the datums from lists, then encode", building, "ms"),
            row("decode the result (logprobs)", decoding, "ms"),
            row("peak memory while encoding ~100 MB, over its size", memory, "×", "at most 2"),
        ],
        note=f"Medians of {rounds} rounds, taking turns. The alternative is the official package's "
        "own conversion and serialisation of the same values.",
    )


def row(what: str, found: dict[str, float], unit: str, target: str = "") -> Row:
    return Row(what, found["tinkex"], unit, against=found["tinker"], target=target)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(sys.argv[2])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 21)
