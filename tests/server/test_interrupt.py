"""Ctrl-C ends a server soon, whoever is connected to it and whatever they wait for."""

from __future__ import annotations

import http.client
import json
import logging
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from support.live_server import LiveServer, live_server
from support.served import forward_body
from tinkex.server.hosting import terminal

TINY = "tinkex/tiny-llama"
POLLS, IDLE = 200, 50
SOON_S = 20
"""Enough for a machine that is busy with other things; it takes about three seconds."""


class Client:
    """Calls on connections that stay open, so that a test can leave them where it likes."""

    def __init__(self, server: LiveServer, stack: ExitStack) -> None:
        self._address = server.url.removeprefix("http://").split(":")
        self._stack = stack

    def send(self, path: str, body: Any) -> http.client.HTTPConnection:
        host, port = self._address
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self._stack.callback(connection.close)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "application/x-protobuf" if isinstance(body, bytes) else "application/json"
        headers = {"x-api-key": "tml-a", "content-type": kind}
        connection.request("POST", f"/api/v1/{path}", content, headers)
        return connection

    def call(self, path: str, body: Any) -> Any:
        response = self.send(path, body).getresponse()
        content = response.read()
        assert response.status == 200, content
        return json.loads(content)

    def half_a_request(self) -> None:
        host, port = self._address
        connection = self._stack.enter_context(socket.create_connection((host, int(port))))
        connection.sendall(b"POST /api/v1/create_session HTTP/1.1\r\ncontent-le")


@contextmanager
def waited_for(home: Path) -> Iterator[tuple[LiveServer, list[http.client.HTTPConnection]]]:
    """A server with held polls of every kind, idle and half-open connections."""
    with ExitStack() as stack, live_server(home, "--model", TINY) as server:
        client = Client(server, stack)
        session = client.call("create_session", {"tags": [], "user_metadata": {}})["session_id"]
        asked = {
            "session_id": session,
            "model_seq_id": 0,
            "base_model": TINY,
            "lora_config": {"rank": 8},
        }
        model = client.call("create_model", asked)["model_id"]
        # It waits for the one that is missing before it.
        waiting = client.call("forward_backward", forward_body(model, 7))["request_id"]
        target = sampler(client, session)
        polls = [
            client.send("retrieve_future", {"request_id": waiting, "allow_metadata_only": False})
            for _ in range(POLLS)
        ]
        polls.append(client.send("retrieve_futures", {"target": {"sampling_session_id": target}}))
        for _ in range(IDLE):
            client.call("session_heartbeat", {"session_id": session})
            client.half_a_request()
        yield server, polls


def sampler(client: Client, session: str) -> str:
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": TINY}
    return str(client.call("create_sampling_session", body)["sampling_session_id"])


def ended(server: LiveServer) -> int:
    """The exit status of a server that must end soon."""
    server.process.wait(SOON_S)
    return server.wait()


@pytest.mark.slow
def test_an_interrupt_answers_held_polls_and_exits_with_zero_soon(tmp_path: Path) -> None:
    with waited_for(tmp_path / "home") as (server, polls):
        server.process.send_signal(signal.SIGINT)
        *singles, batch = [poll.getresponse() for poll in polls]
        assert {answer.status for answer in singles} == {408}
        assert {json.loads(answer.read())["type"] for answer in singles} == {"try_again"}
        assert json.loads(batch.read())["completions"] == []
        assert ended(server) == 0
        assert "Traceback" not in server.output


@pytest.mark.slow
def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack, live_server(tmp_path / "home", "--model", TINY) as server:
        client = Client(server, stack)
        session = client.call("create_session", {"tags": [], "user_metadata": {}})["session_id"]
        asked = {
            "sampling_session_id": sampler(client, session),
            "seq_id": 0,
            "num_samples": 512,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
            "sampling_params": {"max_tokens": 900},
        }
        stream = client.send("asample_stream", asked).getresponse()
        assert b"start" in stream.readline()
        server.process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.5)
        server.process.send_signal(signal.SIGINT)
        assert ended(server) == 130


def test_a_server_whose_reader_is_gone_still_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tinkex serve | head`, or a program that started it and died."""

    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError

    server = terminal._Server(uvicorn.Config("nowhere:app"), lambda: None)
    monkeypatch.setattr("builtins.print", broken)
    level = logging.getLogger("uvicorn").level
    server.interrupt()
    logging.getLogger("uvicorn").setLevel(level)
    assert server.should_exit
