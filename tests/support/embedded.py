"""Keeps one embedded server running for a group of tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tinkex


@contextmanager
def embedded_server(home: Path, *models: str) -> Iterator[None]:
    """`base_url="local"` means a server of these models in `home` until the block ends."""
    settings = {
        "TINKEX_HOME": str(home),
        "TINKEX_MODELS": ",".join(models),
        "TINKER_TELEMETRY": "0",
        "HF_HUB_OFFLINE": "1",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with tinkex.ServiceClient(base_url="local") as service:
            service.get_server_capabilities()
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
