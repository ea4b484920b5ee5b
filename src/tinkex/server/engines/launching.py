"""Where engines run: as processes beside the server, or on a Ray cluster, found by name."""

from __future__ import annotations

import importlib
import importlib.util

from tinkex.server.engines.child_process import engine_processes
from tinkex.server.engines.worker import Launch
from tinkex.server.settings import Settings

RAY_EXTRA = "pip install 'tinkex[ray]'"


def engines_of(settings: Settings) -> Launch:
    if settings.ray is None:
        return engine_processes(settings)
    launch: Launch = importlib.import_module("tinkex.cluster.engines").ray_engines(settings)
    return launch


def has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None
