"""One real server with a tiny model for all guarantees that do not kill it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tinkex
from support.server_process import ServerProcess
from tinkex.server.engines.model_sources import default_cache, resolve


@pytest.fixture(scope="session")
def tiny_llama() -> Path:
    """The folder of the built-in tiny model."""
    return resolve("tinkex/tiny-llama", default_cache(os.environ), os.environ).folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("guarantees") / "home", tiny_llama)
    server.start()
    server.wait_ready()
    yield server
    server.kill()


@pytest.fixture
def service(server: ServerProcess) -> Iterator[Any]:
    with tinkex.ServiceClient(base_url=server.url, api_key="tml-alice") as service:
        yield service
