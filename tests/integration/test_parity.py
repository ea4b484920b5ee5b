"""The same script with the official SDK and with ours: the server cannot tell them apart."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support import parity_scenario
from support.ending import ended_well
from support.protocol_server import Call, ProtocolServer
from support.socket_server import Cut, status

pytest.importorskip("tinker")
pytest.importorskip("torch")

POLLS = "/retrieve_future"
UNCOMPARED = ("/telemetry", "/session_heartbeat", "/healthz")
"""The last is our client's own: it asks whether a server that was gone is back."""


def run(sdk: str, faults: bool) -> tuple[dict[str, Any], list[Call]]:
    with ProtocolServer(fwdbwd_max_chunk_len=2) as server:
        if faults:
            server.fail("/optim_step", status(429, retry_after_ms="20"))
            server.fail("/forward_backward", status(503, retry_after_ms="20"))
            server.fail("/get_info", status(500, x_should_retry="true"))
            server.fail("/save_weights", Cut(after=20))
            server.fail("/asample", status(429))
            server.fail(POLLS, status(410), when=b"sample:0:0")
            server.fail(POLLS, status(500), Cut(after=5), when=b"sample:1:0")
            server.fail("/training_runs", status(502, retry_after="0.02"))
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "TINKEX_"))},
            "PYTHONPATH": str(Path(parity_scenario.__file__).parents[1]),
        }
        done = subprocess.run(
            [sys.executable, parity_scenario.__file__, sdk, server.url],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
        )
        assert ended_well(done.returncode, official=sdk == "tinker"), done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1]), list(server.calls)


def submissions(calls: list[Call]) -> list[str]:
    """Everything but polls, in order; chunks that travel in parallel are put in one order."""
    kept = [c for c in calls if POLLS not in c.path and not c.path.endswith(UNCOMPARED)]
    texts: list[tuple[Any, str]] = []
    group = 0
    for call in kept:
        parallel = call.path.endswith("/forward_backward")
        group += 0 if parallel and texts and "forward_backward" in texts[-1][1] else 1
        text = json.dumps([call.method, call.path, _without_sample_numbers(call)], sort_keys=True)
        texts.append(((group, text if parallel else ""), text))
    return [text for _, text in sorted(texts, key=lambda item: item[0])]


def _without_sample_numbers(call: Call) -> Any:
    if call.path.endswith("/asample"):
        return {key: value for key, value in call.body.items() if key != "seq_id"}
    return call.body


@pytest.mark.slow
@pytest.mark.parametrize("faults", [False, True], ids=["healthy", "faulty"])
def test_both_sdks_ask_the_same_and_get_the_same(faults: bool) -> None:
    theirs, their_calls = run("tinker", faults)
    ours, our_calls = run("tinkex", faults)
    assert ours == theirs
    assert submissions(our_calls) == submissions(their_calls)
    if not faults:
        assert polls(our_calls) == polls(their_calls)
        assert_first_chunk_last(our_calls)


def polls(calls: list[Call]) -> Counter[str]:
    return Counter(json.dumps(c.body, sort_keys=True) for c in calls if c.path.endswith(POLLS))


def assert_first_chunk_last(calls: list[Call]) -> None:
    chunks = [c.body["seq_id"] for c in calls if c.path.endswith("/forward_backward")][:4]
    assert sorted(chunks[:3]) == [2, 3, 4]
    assert chunks[3] == 1
