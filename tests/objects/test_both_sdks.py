"""`tinkex serve --objects` with both SDKs: killed, its cache emptied, its store stopped, and on.

One server for the module; the disturbed run's weights must be those of a run nothing happened to.
"""

from __future__ import annotations

import io
import random
import shutil
import tarfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker

import tinkex
from support.live_server import LiveServer, start
from support.object_service import BUCKET, ObjectService, free_port

MODEL = "tinkex/tiny-llama"
SDKS = {"tinker": tinker, "tinkex": tinkex}


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
        return LiveServer(start(self.home, self._arguments))


@pytest.fixture(scope="module")
def served(service: ObjectService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("home"), f"s3://{BUCKET}/both-sdks")
    yield made
    made.end()


def batch(number: int, sdk: Any) -> list[Any]:
    """Large enough that neither body nor result fits into a row."""
    dice = random.Random(number)
    found = []
    for _ in range(12):
        tokens = [dice.randrange(1, 200) for _ in range(1501)]
        inputs = {"target_tokens": tokens[1:], "weights": [dice.random() for _ in range(1500)]}
        found.append(
            sdk.types.Datum(
                model_input=sdk.types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs
            )
        )
    return found


def train(run: Any, steps: range, sdk: Any) -> list[Any]:
    """Futures of each step's forward pass, all sent."""
    sent = []
    for number in steps:
        sent.append(run.forward_backward(batch(number, sdk), "cross_entropy"))
        sent.append(run.optim_step(sdk.types.AdamParams(learning_rate=1e-2)))
    return sent


def weights(service: Any, path: str, store: ObjectService) -> bytes:
    """A checkpoint's tensors, by a link that leads straight to the store and takes no key."""
    rest = service.create_rest_client()
    url = rest.get_checkpoint_archive_url_from_tinker_path(path).result().url
    assert url.startswith(f"http://127.0.0.1:{store.proxy.port}/{BUCKET}/")
    with urllib.request.urlopen(url) as answer:
        content = io.BytesIO(answer.read())
    with tarfile.open(fileobj=content) as archive:
        found = archive.extractfile("adapter_model.safetensors")
        assert found is not None
        return found.read()


@pytest.mark.parametrize("name", SDKS)
def test_killed_and_emptied_it_goes_on_with_the_same_bits(
    name: str, served: Served, service: ObjectService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    sdk = SDKS[name]
    client = sdk.ServiceClient(base_url=served.url, api_key=f"tml-{name}")
    whole = client.create_lora_training_client(base_model=MODEL, rank=4, seed=5)
    run = client.create_lora_training_client(base_model=MODEL, rank=4, seed=5)
    for future in train(whole, range(4), sdk) + train(run, range(2), sdk):
        future.result()
    undisturbed = whole.save_state(name=f"whole-{name}").result().path
    run.save_state(name=f"half-{name}").result()
    served.kill_and_empty()
    restart = threading.Thread(target=served.again)
    restart.start()
    for future in train(run, range(2, 3), sdk):
        future.result()
    restart.join()
    service.stop()
    waiting = threading.Thread(target=service.start)
    waiting.start()
    for future in train(run, range(3, 4), sdk):
        future.result()
    waiting.join()
    disturbed = run.save_state(name=f"disturbed-{name}").result().path
    assert weights(client, disturbed, service) == weights(client, undisturbed, service)
    rest = client.create_rest_client()
    rest.delete_checkpoint_from_tinker_path(undisturbed).result()
    left = rest.list_checkpoints(run.model_id).result().checkpoints
    assert {each.checkpoint_id for each in left} >= {f"weights/half-{name}"}
