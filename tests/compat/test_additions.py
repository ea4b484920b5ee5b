"""What our client and server offer each other beyond the official protocol."""

from __future__ import annotations

import io
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import tinkex
from support.live_server import LiveServer, live_server

MODEL = "tinkex/tiny-llama"
KEY = "tml-additions"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("additions") / "home", "--model", MODEL) as server:
        yield server


@pytest.fixture(scope="module")
def service(server: LiveServer) -> Iterator[tinkex.ServiceClient]:
    with tinkex.ServiceClient(base_url=server.url, api_key=KEY) as service:
        yield service


def test_tokens_are_streamed_while_they_are_sampled(service: Any) -> None:
    sampler = service.create_sampling_client(base_model=MODEL)
    params = tinkex.SamplingParams(max_tokens=24, seed=1, stop=[])
    stream = sampler.stream(tinkex.ModelInput.from_ints([1, 2, 3]), params)
    pieces = [piece.tokens for piece in stream if piece.tokens]
    assert len(pieces) > 1
    streamed = [token for piece in pieces for token in piece]
    whole = sampler.sample(tinkex.ModelInput.from_ints([1, 2, 3]), 1, params).result()
    assert streamed == whole.sequences[0].tokens == stream.response.sequences[0].tokens


def test_leaving_a_stream_cancels_its_sample(service: Any, server: LiveServer) -> None:
    sampler = service.create_sampling_client(base_model=MODEL)
    params = tinkex.SamplingParams(max_tokens=4000, seed=1, stop=[])
    for _ in sampler.stream(tinkex.ModelInput.from_ints([1, 2, 3]), params):
        break
    deadline = time.monotonic() + 60
    while "tinkex_samples_in_flight 0" not in metrics(server):
        assert time.monotonic() < deadline, "the sample goes on without a reader"
        time.sleep(0.05)


def metrics(server: LiveServer) -> str:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def test_every_checkpoint_comes_as_an_archive(service: Any, server: LiveServer) -> None:
    training = service.create_lora_training_client(MODEL, rank=2)
    rest = tinkex.RestClient(base_url=server.url, api_key=KEY)
    for save in (training.save_state, training.save_weights_for_sampler):
        path = save("whole").result().path
        link = rest.get_checkpoint_archive_url_from_tinker_path(path).result()
        with urllib.request.urlopen(link.url, timeout=60) as answer:
            content = answer.read()
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            assert {"adapter_model.safetensors", "manifest.json"} <= set(tar.getnames())
