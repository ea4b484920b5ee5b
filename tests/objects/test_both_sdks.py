"""`tinkex serve --objects` with both SDKs: killed, its cache emptied, its store stopped, and on.

One server for the module; the disturbed run's weights must be those of a run nothing happened to.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.live_server import LiveServer, start
from support.object_service import BUCKET, ObjectService, free_port

MODEL = "tinkex/tiny-llama"
TRAINER = Path(__file__).parent / "trainer.py"


class Served:
    """A server of one home on one port, through its deaths."""

    def __init__(self, home: Path, url: str) -> None:
        self.home, self._port = home, free_port()
        self._arguments = ["--port", str(self._port), "--model", MODEL, "--objects", url]
        self._server = self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def kill_and_empty(self) -> None:
        """A power cut, and a disk that has lost all but the database."""
        self._server.process.kill()
        self._server.wait()
        shutil.rmtree(self.home / "cache")

    def again(self) -> None:
        self._server = self._start()

    def end(self) -> None:
        self._server.stop()

    def _start(self) -> LiveServer:
        return LiveServer(start(self.home, self._arguments), self.home)


class Client:
    """One SDK in a process of its own, asked line by line."""

    def __init__(self, sdk: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(TRAINER), sdk, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TINKER_TELEMETRY": "0"},
        )

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        for answer in self._process.stdout:
            if answer.startswith("answer "):
                return answer.removeprefix("answer ").strip()
        raise AssertionError(f"the client raised at {line!r}")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def served(service: ObjectService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("home"), f"s3://{BUCKET}/both-sdks")
    yield made
    made.end()


@contextmanager
def meanwhile(thread: threading.Thread) -> Iterator[None]:
    thread.start()
    yield
    thread.join()


def fetched(url: str, store: ObjectService) -> bytes:
    """What a link leads to: straight to the store, and no key is asked for."""
    assert url.startswith(f"http://127.0.0.1:{store.proxy.port}/{BUCKET}/")
    with urllib.request.urlopen(url) as answer:
        return bytes(answer.read())


def tensors(content: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        found = archive.extractfile("adapter_model.safetensors")
        assert found is not None
        return found.read()


@pytest.mark.parametrize("sdk", ["tinker", "tinkex"])
def test_killed_and_emptied_it_goes_on_with_the_same_bits(
    sdk: str, served: Served, service: ObjectService
) -> None:
    client = Client(sdk, served.url)
    try:
        client.ask("train whole 0 3")
        client.ask("train run 0 1")
        whole = client.ask("save whole whole")
        client.ask("save run half")
        served.kill_and_empty()
        with meanwhile(threading.Thread(target=served.again)):
            client.ask("train run 1 2")
        service.stop()
        with meanwhile(threading.Thread(target=service.start)):
            client.ask("train run 2 3")
        undisturbed = tensors(fetched(client.ask(f"archive {whole}"), service))
        assert fetched(client.ask("export run disturbed"), service) == undisturbed
        client.ask(f"delete {whole}")
    finally:
        client.end()
