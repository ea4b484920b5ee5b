"""What several tests of the server share: a tiny model on disk, made once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tinkex.server.engines.model_sources import default_cache, resolve


@pytest.fixture(scope="session")
def tiny_llama() -> Path:
    """The folder of the built-in tiny model."""
    return resolve("tinkex/tiny-llama", default_cache(os.environ), os.environ).folder
