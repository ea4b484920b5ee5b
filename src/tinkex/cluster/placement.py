"""What one engine asks Ray for: its model, its settings, and the resources it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkex.engine.settings import WorkerConfig
from tinkex.server.engines.model_needs import PROCESS_BYTES, Machine, model_needs

_HALVES = 1.5
"""A CPU engine keeps its matrices a second time, as halves."""
_OF_RAY = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@dataclass(frozen=True, slots=True)
class Placement:
    """The first word to the process that speaks to Ray: which engine, and what it needs.

    `home` is the server's, whose weights are for its engines. `resources` are the operator's own,
    by Ray's names; they go before what the model suggests. Paths under `shared` are the same
    folders on every node.
    """

    config: WorkerConfig
    version: str
    home: str
    resources: Mapping[str, float] = field(default_factory=dict)
    shared: tuple[str, ...] = ()

    @property
    def shares_files(self) -> bool:
        """Whether every node sees what an engine reads and writes."""
        paths = (self.config.model, self.home)
        return all(any(Path(path).is_relative_to(root) for root in self.shared) for path in paths)

    def needs(self, cluster_has_gpus: bool) -> dict[str, float]:
        """By Ray's names. A device that is left open is a GPU where the cluster has any."""
        device = self.config.device
        on_gpu = device.startswith("cuda") or (device == "auto" and cluster_has_gpus)
        on_gpu = bool(self.resources.get("GPU", on_gpu))
        needs = {"CPU": 1.0, "GPU": 1.0 if on_gpu else 0.0, "memory": self._host_memory(on_gpu)}
        return {name: number for name, number in (needs | dict(self.resources)).items() if number}

    def _host_memory(self, on_gpu: bool) -> float:
        machine = Machine("gpu" if on_gpu else "cpu", 1 << 62)
        packed = bool(self.config.packed_experts)
        needs = model_needs(Path(self.config.model), machine, packed=packed)
        weights = 0 if needs is None else needs.memory
        return float(round(weights * (1.0 if on_gpu else _HALVES)) + PROCESS_BYTES)


def actor_options(needs: Mapping[str, float]) -> dict[str, Any]:
    """The same as Ray's options of an actor."""
    options: dict[str, Any] = {"num_cpus": 0, "resources": {}}
    for name, number in needs.items():
        if name in _OF_RAY:
            options[_OF_RAY[name]] = int(number) if name == "memory" else number
        else:
            options["resources"][name] = number
    return options


def in_words(needs: Mapping[str, float]) -> str:
    """Such as `1 GPU, 1 CPU and 18.4 GB of memory`."""
    parts = [f"{number:g} {name}" for name, number in needs.items() if name != "memory"]
    if memory := needs.get("memory"):
        parts.append(f"{memory / 1e9:.1f} GB of memory")
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)
