"""A Ray cluster of several nodes on this machine, in a process of its own.

`python -m support.ray_cluster` prints the cluster's address and then does what it is told, a line
each: `add CPUS CACHE`, `kill` (a node with an engine), `crash` (an engine alone), `freeze` (a node
with an engine, as if it were cut off), `thaw` (and wait until the engine on it is gone), `behead`.
Tests never load Ray.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

STORE_BYTES = 100_000_000
_AS_OTHERS = {"RAY_worker_niceness": "0"}
"""Ray's workers are nice to all other processes; beside busy ones they would hardly run at all."""
_ENGINE = b"ray::EngineActor"
_END_S = 90.0


class RayCluster:
    """The test's side. Starts with a head that has no room for an engine."""

    def __init__(self) -> None:
        sources = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.ray_cluster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **_AS_OTHERS, "PYTHONPATH": os.pathsep.join(filter(None, sources))},
        )
        self.address = self._read()

    def add(self, cache: Path, cpus: int = 1) -> None:
        """A node joins, with a cache of its own."""
        self._tell(f"add {cpus} {cache}")

    def kill(self) -> None:
        """`kill -9` of all processes of a node that has an engine."""
        self._tell("kill")

    def crash(self) -> None:
        """`kill -9` of the process of an engine."""
        self._tell("crash")

    def freeze(self) -> None:
        """A node with an engine stands still, all its processes: nobody can tell it from one that
        is cut off."""
        self._tell("freeze")

    def thaw(self) -> None:
        """It goes on, and its engine ends."""
        self._tell("thaw")

    def behead(self) -> None:
        """`kill -9` of the head."""
        self._tell("behead")

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._read() == "done"

    def _read(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("> "):
                return line.removeprefix("> ").strip()
        raise AssertionError("the Ray cluster ended by itself")


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from (int(child) for child in (task / "children").read_text().split())


def _is_engine(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_ENGINE)
    return False


def _engines(node: Any) -> list[int]:
    return [
        pid for pid in _children(node.all_processes["raylet"][0].process.pid) if _is_engine(pid)
    ]


def _signal(node: Any, number: int) -> None:
    own = [each.process.pid for group in node.all_processes.values() for each in group]
    own += _children(node.all_processes["raylet"][0].process.pid)
    for pid in own:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _thaw(node: Any) -> None:
    engines = _engines(node)
    _signal(node, signal.SIGCONT)
    end = time.monotonic() + _END_S
    while any(map(_is_engine, engines)):
        assert time.monotonic() < end, "an engine that was given up goes on"
        time.sleep(0.05)


def main() -> None:
    from ray.cluster_utils import Cluster

    shared = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **shared})
    print(">", cluster.address, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["add", cpus, cache]:
                own = {"TINKEX_CACHE": cache}
                cluster.add_node(num_cpus=int(cpus), env_vars=own, **shared)
            case ["kill"]:
                node = next(filter(_engines, cluster.worker_nodes))
                _signal(node, signal.SIGKILL)
                cluster.worker_nodes.remove(node)
            case ["crash"]:
                node = next(filter(_engines, cluster.worker_nodes))
                os.kill(_engines(node)[0], signal.SIGKILL)
            case ["freeze"]:
                frozen = next(filter(_engines, cluster.worker_nodes))
                _signal(frozen, signal.SIGSTOP)
            case ["thaw"]:
                _thaw(frozen)
            case ["behead"]:
                _signal(cluster.head_node, signal.SIGKILL)
        print("> done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
