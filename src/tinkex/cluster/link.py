"""The connection to Ray, held by the process that talks to it: creates actors, waits for places.

This module and its process are the only ones that load Ray. Its client ends its process when the
cluster's head stays away; that process must not be the server.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping
from typing import Any

import ray

from tinkex.cluster.engine_actor import EngineActor
from tinkex.cluster.placement import Placement, actor_options, in_words

_GROUPS = {"commands": 1, "events": 1, "files": 1}
_NAMESPACE = "tinkex"
_LOOK_FOR_S = 10.0
_LISTENS = (
    "; something listens there: if it is a cluster with token authentication, the server needs "
    "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, too"
)
"""Ray says no more of a wrong or missing token than of a cluster that is not there."""


class Unreachable(Exception):
    """There is no cluster at the address."""


class Link:
    """To one cluster, for every engine of a server."""

    def __init__(self, address: str) -> None:
        """Connects, in the main thread. Raises `Unreachable`."""
        self._lock = threading.Lock()
        self._waiting = 0
        quiet = logging.WARNING
        hint = ""
        try:
            if address != "auto":
                _look_for(address)
                hint = _LISTENS
            ray.init(address, namespace=_NAMESPACE, log_to_driver=False, logging_level=quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            text = (str(error).splitlines() or [type(error).__name__])[0]
            raise Unreachable(f"no Ray cluster answers at {address}: {text}{hint}") from error

    def close(self) -> None:
        """Leave the cluster; it ends what was made through this link."""
        ray.shutdown()

    def needs_of(self, placement: Placement) -> dict[str, float]:
        return placement.needs(bool(ray.cluster_resources().get("GPU")))

    def create(self, needs: Mapping[str, float]) -> Any:
        """An actor, at once; Ray looks for a place meanwhile. Our supervisor restarts it, not
        Ray: a new life knows nothing of the old one's runs."""
        remote: Any = ray.remote  # its types do not know groups
        made = remote(concurrency_groups=_GROUPS, max_restarts=0, max_task_retries=0)(EngineActor)
        return made.options(**actor_options(needs)).remote()

    def is_here(self, actor: Any) -> bool:
        """Whether an actor that has begun is on the node of this process, and sees its files."""
        found = ray._private.state.actors(actor._actor_id.hex())
        here: str = ray.get_runtime_context().get_node_id()
        return bool(found["Address"]["NodeID"] == here)

    def waits(self, change: int) -> None:
        """One engine more, or one less, waits for its place."""
        with self._lock:
            self._waiting += change

    def why_it_waits(self, needs: Mapping[str, float]) -> str:
        """In words, for an engine that has no place yet."""
        wanted = in_words(needs)
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(_fits(needs, node) for node in alive):
            return f"the Ray cluster has no node with {wanted}; {self._count()}"
        free = ray._private.state.available_resources_per_node().values()
        if not any(_fits(needs, node) for node in free):
            return f"Ray has no node with {wanted} free; {self._count()}"
        return "Ray is starting the engine's process"

    def _count(self) -> str:
        return "1 engine waits" if self._waiting == 1 else f"{self._waiting} engines wait"


def _look_for(address: str) -> None:
    """Whether anybody listens there. Ray itself would wait for minutes, and say why to nobody."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), _LOOK_FOR_S):
        pass


def _fits(needs: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(node.get(name, 0.0) >= number for name, number in needs.items())


def call(method: Any, group: str, *arguments: object) -> Any:
    """A reference to the answer of an actor's method, run by that group of its threads."""
    return method.options(concurrency_group=group).remote(*arguments)


def kill(actor: Any) -> None:
    """End an actor, whether it has begun or not."""
    try:
        ray.kill(actor)
    except Exception as error:  # it is gone, or so is the cluster
        logging.getLogger(__name__).debug("an actor was not killed: %s", error)
