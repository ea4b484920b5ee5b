"""Engines on a real Ray cluster: the same numbers as beside the server, whatever node is lost."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tinkex
from support.ending import ended_well
from support.live_server import LiveServer, live_server
from support.ray_cluster import RayCluster
from support.server_process import MODEL

SDKS = ("tinker", "tinkex")
STEPS = 6
TESTS = Path(__file__).parents[1]
TRAINER = TESTS / "guarantees" / "trainer.py"
SILENCE_S = 9
"""Long enough for a busy machine, and less than Ray itself waits for a node."""

SCALED = ("sequences_per_engine=1", "average_s=0.2", "grow_s=0.2", "shrink_s=2")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of nodes, in the order in which they join."""
    return [tmp_path_factory.mktemp(f"node-{number}") for number in range(4)]


@pytest.fixture(scope="module")
def cluster(caches: list[Path]) -> Iterator[RayCluster]:
    with RayCluster() as running:
        running.add(caches[0])
        running.add(caches[1])
        yield running


@pytest.fixture(scope="module")
def server(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One engine, and another under load."""
    home = tmp_path_factory.mktemp("home")
    scaling = [word for each in SCALED for word in ("--scaling", each)]
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
        environ.setenv("TINKEX_RAY_SILENCE_S", str(SILENCE_S))
        arguments = ("--model", MODEL, "--ray", cluster.address, "--engines", "1-2", *scaling)
        with live_server(home, *arguments) as running:
            yield running


class _User:
    """A training script with one of the SDKs, in a process of its own, that waits to be told."""

    def __init__(self, sdk: str, url: str) -> None:
        self._official = sdk == "tinker"
        self._process = subprocess.Popen(
            [sys.executable, str(TRAINER), sdk, url, str(STEPS), "paced"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS), "TINKER_TELEMETRY": "0"},
        )

    def go_on(self, steps: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n" * steps)
        self._process.stdin.flush()

    def wait_for_steps(self, steps: int) -> None:
        assert self._process.stdout is not None
        for _ in range(steps):
            assert self._process.stdout.readline().startswith("step ")

    def losses(self) -> list[float]:
        told, _ = self._process.communicate(timeout=300)
        assert ended_well(self._process.returncode, official=self._official), "the client raised"
        found: list[float] = json.loads(told.splitlines()[-1])
        return found


class _Users:
    """Both of them."""

    def __init__(self, url: str) -> None:
        self._users = [_User(sdk, url) for sdk in SDKS]

    def train(self, steps: int) -> None:
        self.begin(steps)
        for user in self._users:
            user.wait_for_steps(steps)

    def begin(self, steps: int) -> None:
        for user in self._users:
            user.go_on(steps)

    def losses(self) -> list[list[float]]:
        """After the rest of their steps."""
        self.begin(STEPS)
        return [user.losses() for user in self._users]


@dataclass
class Calm:
    """What an engine beside the server computes that nobody disturbed."""

    losses: list[list[float]]
    sampled: list[int]
    weights: list[str]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    home = tmp_path_factory.mktemp("calm")
    with live_server(home, "--model", MODEL) as running:
        return Calm(_Users(running.url).losses(), _sampled(running), _weights(home))


def _sampled(server: LiveServer) -> list[int]:
    """From weights that the engine has to load from their files."""
    with tinkex.ServiceClient(base_url=server.url, api_key="tml-tinkex") as service:
        training = service.create_lora_training_client(MODEL, rank=4, seed=5)
        path = training.save_weights_for_sampler("fresh").result(timeout=120).path
        sampler = service.create_sampling_client(model_path=path)
        prompt = tinkex.types.ModelInput.from_ints([1, 2, 3])
        params = tinkex.types.SamplingParams(max_tokens=16, seed=3)
        return list(sampler.sample(prompt, 1, params).result(timeout=120).sequences[0].tokens)


@contextmanager
def _much_to_do(server: LiveServer) -> Iterator[None]:
    """Samples without end, for more than one engine."""
    over = threading.Event()

    def ask() -> None:
        with tinkex.ServiceClient(base_url=server.url, api_key="tml-other") as service:
            sampler = service.create_sampling_client(base_model=MODEL)
            prompt = tinkex.types.ModelInput.from_ints([1, 2, 3])
            params = tinkex.types.SamplingParams(max_tokens=64)
            while not over.is_set():
                sampler.sample(prompt, 4, params).result(timeout=300)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()


def _weights(home: Path) -> list[str]:
    """The hashes of all saved tensors."""
    files = (home / "weights").rglob("*.safetensors")
    return sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)


def _health(server: LiveServer) -> str:
    try:
        with urllib.request.urlopen(f"{server.url}/api/v1/healthz", timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read().decode())


class _AtHome(http.client.HTTPConnection):
    """As the owner of a home."""

    def __init__(self, home: Path) -> None:
        super().__init__("local")
        self._path = str(home / "socket")

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


def _engines(server: LiveServer) -> str:
    """What `tinkex engine list` says of them, a line each."""
    connection = _AtHome(server.home)
    connection.request("GET", "/api/v1/engines", headers={"x-api-key": "tml-tinkex"})
    found: list[dict[str, Any]] = json.loads(connection.getresponse().read())["engines"]
    connection.close()
    return "\n".join(f"{each['state']}: {each['reason']}" for each in found)


def _wait_until(server: LiveServer, *words: str, look: Callable[[LiveServer], str]) -> None:
    deadline = time.monotonic() + 120
    while not all(word in (told := look(server)) for word in words):
        assert time.monotonic() < deadline, told
        time.sleep(0.1)


def _wait_for_both(server: LiveServer) -> None:
    _wait_until(server, "ready: \nready: ", look=_engines)


def test_lost_nodes_change_no_number_and_new_ones_take_their_place(
    cluster: RayCluster, server: LiveServer, calm: Calm, caches: list[Path]
) -> None:
    """Under load a second engine comes to the second node. `kill -9` of one node, then of the
    other, in mid-run of two tenants, one with the official SDK: the server goes on with what is
    left, says what it waits for, and goes on when a node joins; losses and weights are those of an
    engine beside the server that nobody disturbed. No node sees a file of the server's."""
    with _much_to_do(server):
        _wait_for_both(server)
        users = _Users(server.url)
        users.train(2)
        cluster.kill()
        users.train(2)
        _wait_until(server, "ready: ", "no node with 1 CPU", "; 1 engine waits", look=_engines)
        assert "ok" in _health(server)
        users.begin(1)
        cluster.kill()
        _wait_until(server, "the Ray cluster has no node with 1 CPU", look=_health)
        cluster.add(caches[2])
        assert users.losses() == calm.losses
    assert _sampled(server) == calm.sampled
    assert _weights(server.home) == calm.weights
    fetched = [path for cache in caches for path in cache.glob("from-server-*/model.safetensors")]
    assert len(fetched) == 3


def test_a_node_that_is_cut_off_is_not_waited_for_and_not_heard_when_it_is_back(
    cluster: RayCluster, server: LiveServer, calm: Calm, caches: list[Path]
) -> None:
    cluster.add(caches[3])
    with _much_to_do(server):
        _wait_for_both(server)
        users = _Users(server.url)
        users.train(2)
        cluster.freeze()
        assert users.losses() == calm.losses
        # Before that the engine would just go on, as if nothing had been.
        _wait_until(server, f"has not answered for {SILENCE_S} s", look=lambda _: server.output)
        cluster.thaw()
    assert set(_weights(server.home)) == set(calm.weights), "nothing was saved twice or differs"


def test_an_engine_that_is_killed_is_told_from_a_node_that_is_lost(
    cluster: RayCluster, server: LiveServer
) -> None:
    """In one line of ours, where Ray would print a page of its own into the server's log."""
    _wait_until(server, "ready: ", look=_engines)
    cluster.crash()
    _wait_until(server, "has lost the engine's process", look=lambda _: server.output)
    _wait_until(server, "ready: ", look=_engines)
    assert "(raylet)" not in server.output


def test_an_engine_that_is_not_needed_any_more_gives_its_place_back(server: LiveServer) -> None:
    _wait_until(server, "asleep: ", "ready: ", look=_engines)


def test_a_lost_head_is_survived_and_said(cluster: RayCluster, server: LiveServer) -> None:
    cluster.behead()
    _wait_until(server, f"the cluster at {cluster.address} is gone", look=_health)
    assert server.process.poll() is None
    assert server.stop() == 0


def test_a_cluster_that_nobody_listens_for_is_said_and_not_waited_for(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        options = ["--model", MODEL, "--port", "0", "--ray", address]
        ended = subprocess.run(
            [sys.executable, "-m", "tinkex", "serve", "--home", str(tmp_path), *options],
            capture_output=True,
            text=True,
        )
    assert ended.returncode == 1
    assert f"no Ray cluster answers at {address}: [Errno 111]" in ended.stderr
