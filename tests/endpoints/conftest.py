"""One `tinkex serve` for all tests of the endpoints: a base model, and an adapter of one key's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import tinkex
from support.clients import datum
from support.live_server import LiveServer, live_server

MODEL = "tinkex/tiny-llama"
KEY, STRANGER = "tml-alice", "tml-bob"


@dataclass(frozen=True)
class World:
    """A running server; `adapter` is saved weights of `KEY`'s that differ from the base model."""

    server: LiveServer
    service: tinkex.ServiceClient
    adapter: str

    @property
    def url(self) -> str:
        return self.server.url

    def sampler(self, model: str) -> tinkex.SamplingClient:
        """The native client of what an endpoint calls `model`."""
        if model.startswith("tinker://"):
            return self.service.create_sampling_client(model_path=model)
        return self.service.create_sampling_client(base_model=model)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("endpoints") / "home"
    with (
        live_server(home, "--model", MODEL) as server,
        tinkex.ServiceClient(base_url=server.url, api_key=KEY) as service,
    ):
        yield World(server, service, _trained(service))


def _trained(service: tinkex.ServiceClient) -> str:
    training = service.create_lora_training_client(MODEL, rank=8)
    for _ in range(3):
        training.forward_backward([datum(*b"adapters answer as themselves")], "cross_entropy")
        training.optim_step(tinkex.AdamParams(learning_rate=0.05)).result(timeout=60)
    return training.save_weights_for_sampler("mine").result(timeout=60).path
