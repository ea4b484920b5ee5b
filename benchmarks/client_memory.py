"""Peak memory of the client while it sends 100 MB of datums, beside the official SDK.

    python benchmarks/client_memory.py

Each SDK runs in a process of its own against a server in another. The data exists before the
measurement starts; what is counted is how far resident memory rises above that while one
``forward_backward`` is encoded, sent and answered.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from apart import client_of, server_of

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

DATUMS = 400
TOKENS = 16_384
BYTES_PER_TOKEN = 4 + 8 + 4  # token, target, weight
ENCODED_MB = DATUMS * TOKENS * BYTES_PER_TOKEN / 1e6


def memory_mb(name: str) -> float:
    """`VmRSS` (now) or `VmHWM` (highest since the last reset) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit(f"{name} is not in /proc/self/status")


def measure(name: str, url: str) -> dict[str, float]:
    import numpy as np

    sdk: Any = importlib.import_module(name)
    training = sdk.ServiceClient(base_url=url, api_key="tml-benchmark").create_lora_training_client(
        "acme/tiny"
    )
    tokens = np.arange(TOKENS, dtype=np.int64) % 1000
    shared = list(map(int, tokens))  # prompts share one list: only loss inputs are distinct
    data = [
        sdk.types.Datum(
            model_input=sdk.types.ModelInput.from_ints(shared),
            loss_fn_inputs={
                "target_tokens": tokens + i,
                "weights": np.full(TOKENS, 1.0, dtype=np.float32),
            },
        )
        for i in range(DATUMS)
    ]
    training.forward_backward(data[:4], "cross_entropy").result()
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # start counting the peak from here
    training.forward_backward(data, "cross_entropy").result()
    return {"growth_mb": memory_mb("VmHWM") - before}


def serve() -> None:
    """A server that accepts every batch without reading it."""
    from support.socket_server import Received, Reply, SocketServer
    from tinkex.wire.protobuf import encode_forward_backward_output

    result = encode_forward_backward_output([], {"loss:sum": 0.0})

    async def answer(request: Received) -> Reply:
        path = request.path.rpartition("/")[2]
        if path == "create_session":
            return Reply(body=b'{"type":"create_session","session_id":"s1"}')
        if path == "create_model":
            return Reply(body=b'{"request_id":"model"}')
        if path == "forward_backward":
            return Reply(body=b'{"request_id":"batch"}')
        if path == "retrieve_future" and b'"model"' in request.body:
            return Reply(body=b'{"model_id":"s1:train:0","type":"create_model"}')
        if path == "retrieve_future":
            return Reply(body=result, content_type="application/x-protobuf")
        if path == "telemetry":
            return Reply(body=b'{"status":"accepted"}')
        if path == "session_heartbeat":
            return Reply(body=b'{"type":"session_heartbeat"}')
        return Reply(body=b"{}")

    with SocketServer(answer) as server:
        print(server.url, flush=True)
        sys.stdin.read()


def main() -> None:
    from report import Row, write

    with server_of(__file__) as url:
        ours, theirs = (client_of(__file__, sdk, url)["growth_mb"] for sdk in ("tinkex", "tinker"))
    write(
        "client_memory",
        "Client memory while sending a batch",
        [
            Row("peak growth while sending", ours, "MB", against=theirs),
            Row(
                "peak growth, in encoded sizes",
                ours / ENCODED_MB,
                "×",
                against=theirs / ENCODED_MB,
                target="at most 2×",
            ),
            Row("encoded size of the batch", ENCODED_MB, "MB"),
        ],
        note=f"{DATUMS} datums of {TOKENS} tokens with targets and weights, which exist before "
        "the measurement. Growth is the highest resident memory during one forward_backward "
        "minus what was resident before it. The alternative is tinker.",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve()
    elif sys.argv[1:2] == ["--client"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3])))
    else:
        main()
