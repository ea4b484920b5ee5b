"""Where engines run: as processes beside the server, or on a Ray cluster, found by name."""

from __future__ import annotations

import importlib
import importlib.util
import re

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


def check_cluster_address(address: str, problem: type[Exception]) -> None:
    """Raises `problem` for an address that cannot be a cluster's, before anything waits for it."""
    found = re.fullmatch(r"(?:[^\s/:]+|\[[0-9a-fA-F:]+\]):([0-9]{1,5})", address)
    if address == "auto" or (found is not None and 0 < int(found[1]) < 1 << 16):
        return
    fix = "give auto for the cluster of this machine, or its head's address as HOST:PORT"
    if address.startswith("ray://"):
        fix = "Ray's client protocol is not used: join this machine with `ray start`, then " + fix
    raise problem(f"--ray {address!r}: {fix}, such as 10.0.0.1:6379")
