"""Engines on a real Ray cluster: the same numbers as beside the server, whatever node is lost."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.ending import ended_well
from support.live_server import LiveServer, live_server
from support.ray_cluster import RayCluster
from support.server_process import MODEL

SDKS = ("tinker", "tinkex")
STEPS = 6
TESTS = Path(__file__).parents[1]
TRAINER = TESTS / "guarantees" / "trainer.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of the first node, and of the one that joins later."""
    return [tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")]


@pytest.fixture(scope="module")
def cluster(caches: list[Path]) -> Iterator[RayCluster]:
    with RayCluster() as running:
        running.add(caches[0])
        yield running


@pytest.fixture(scope="module")
def server(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
        with live_server(home, "--model", MODEL, "--ray", cluster.address) as running:
            yield running


class _User:
    """A training script with one of the SDKs, in a process of its own."""

    def __init__(self, sdk: str, url: str) -> None:
        self._official = sdk == "tinker"
        self._process = subprocess.Popen(
            [sys.executable, str(TRAINER), sdk, url, str(STEPS)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS), "TINKER_TELEMETRY": "0"},
        )

    def wait_for_a_step(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("step ")

    def losses(self) -> list[float]:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            told = stdout.read()
        status = self._process.wait(60)
        assert ended_well(status, official=self._official), "the client raised"
        found: list[float] = json.loads(told.splitlines()[-1])
        return found


def _trained(server: LiveServer, harm: Callable[[], None] = lambda: None) -> list[list[float]]:
    users = [_User(sdk, server.url) for sdk in SDKS]
    for user in users:
        user.wait_for_a_step()
    harm()
    return [user.losses() for user in users]


def _sampled(server: LiveServer) -> list[int]:
    """From weights that the engine has to load from their files."""
    import tinkex

    with tinkex.ServiceClient(base_url=server.url, api_key="tml-tinkex") as service:
        training = service.create_lora_training_client(MODEL, rank=4, seed=5)
        path = training.save_weights_for_sampler("fresh").result(timeout=120).path
        sampler = service.create_sampling_client(model_path=path)
        prompt = tinkex.types.ModelInput.from_ints([1, 2, 3])
        params = tinkex.types.SamplingParams(max_tokens=16, seed=3)
        return list(sampler.sample(prompt, 1, params).result(timeout=120).sequences[0].tokens)


def _weights(home: Path) -> list[str]:
    """The hashes of all saved tensors."""
    files = (home / "weights").rglob("*.safetensors")
    return sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)


def _health(server: LiveServer) -> str:
    try:
        with urllib.request.urlopen(f"{server.url}/api/v1/healthz", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read().decode())


def _wait_until(server: LiveServer, words: str) -> None:
    deadline = time.monotonic() + 120
    while words not in (told := _health(server)):
        assert time.monotonic() < deadline, told
        time.sleep(0.1)


def test_a_lost_node_changes_no_number_and_a_new_one_takes_its_place(
    cluster: RayCluster, server: LiveServer, caches: list[Path], tmp_path: Path
) -> None:
    """`kill -9` of the only node with room in mid-run of two tenants, one with the official SDK:
    the server says what it waits for, goes on when a node joins, and losses and weights are those
    of an engine beside the server that nobody disturbed. No node sees a file of the server's."""
    with live_server(tmp_path / "calm", "--model", MODEL) as calm:
        expected, sampled = _trained(calm), _sampled(calm)

    def harm() -> None:
        cluster.kill()
        _wait_until(server, "the Ray cluster has no node with 1 CPU")
        cluster.add(caches[1])

    assert _trained(server, harm) == expected
    assert _sampled(server) == sampled
    assert _weights(server.home) == _weights(tmp_path / "calm")
    fetched = [path for cache in caches for path in cache.glob("from-server-*/model.safetensors")]
    assert len(fetched) == 2


def test_a_lost_head_is_survived_and_said(cluster: RayCluster, server: LiveServer) -> None:
    cluster.behead()
    _wait_until(server, f"the cluster at {cluster.address} is gone")
    assert server.process.poll() is None
    assert server.stop() == 0
