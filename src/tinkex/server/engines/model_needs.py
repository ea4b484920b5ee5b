"""What a model needs on this machine: its family, its sizes, its memory, and whether it fits.

Read from a configuration: a folder's own, or the published one of a model known by name. For
folders whose configuration we cannot compute with, the headers of their files are counted. No
weight is read. Weights are held once for training and sampling, bfloat16 on a GPU and float32 on a
CPU; experts in MXFP4 stay packed where only that fits. Caches, runs and activations take the rest.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_RUN_WIDTH = 16
"""Bytes per adapter parameter in training: itself, its gradient and two moments."""

PROCESS_BYTES = 512 << 20
"""Host memory that an engine takes besides its model: libraries, messages, the process itself."""

_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Where an engine would run, and the memory it finds there."""

    device: str
    memory: int
    """Memory of one device."""
    devices: int = 1

    @property
    def width(self) -> int:
        """Bytes of one weight."""
        return 4 if self.device == "cpu" else 2


RANK = 32
"""Rank of the run in the estimate."""

CONTEXT = 8192
"""Tokens of the sequence in the estimate, if the model takes so many."""


@dataclass(frozen=True, slots=True)
class Needs:
    family: str | None
    """Its `model_type`; None if nothing says."""
    parameters: int
    """All of its parameters."""
    memory: int
    """Bytes of the weights."""
    reason: str | None
    """Why it does not fit; None if it does."""
    active: int | None = None
    """Parameters active per token, if the configuration tells."""
    context: int | None = None
    """Tokens that a sequence may have, if the configuration tells."""
    sampling: int | None = None
    """Weights, and keys, values and states of one long sequence."""
    training: int | None = None
    """Weights, and one run with its gradient and moments."""
    ranks: int = 1
    """Number of devices that have to share it: `tinkex serve --engine ranks=N`."""
    whole_experts: bool = False
    """Whether each of them should have whole experts instead of a part of every expert."""
    packed_experts: bool = False
    """Whether experts stay in MXFP4, as an engine keeps them if widened ones do not fit."""

    @property
    def plan(self) -> str:
        """How to serve it on several devices, as options and in words; empty for one."""
        if self.ranks == 1:
            return ""
        if self.whole_experts:
            return f"--engine ranks={self.ranks} --engine whole_experts=1 (expert parallelism)"
        return f"--engine ranks={self.ranks} (tensor parallelism)"


def this_machine() -> Machine:
    """The GPUs if there are any, else the CPU."""
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        try:
            told = subprocess.run(
                asked, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True
            )
            sizes = [int(size) << 20 for size in told.stdout.split()]
            return Machine("gpu", min(sizes), len(sizes))
        except (OSError, subprocess.SubprocessError, ValueError):
            pass
    return cpu_machine()


def cpu_machine() -> Machine:
    """The processors, whatever devices there are."""
    return Machine("cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def model_needs(folder: Path, machine: Machine, *, packed: bool = False) -> Needs | None:
    """None for a folder whose files do not say. With `packed`, experts in MXFP4 stay packed even
    where widened ones fit."""
    try:
        config = json.loads((folder / "config.json").read_text())
        family = config.get("model_type")
        parameters = sum(_parameters(path) for path in folder.glob("*.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    counted = Needs(family, parameters, parameters * machine.width, None)
    return _planned(counted, config, machine, packed=packed)


def known_needs(machine: Machine) -> dict[str, Needs]:
    """The needs of every model known by name, present here or not."""
    known = importlib.import_module("tinkex.engine.model.known").KNOWN
    found = {}
    for name, config in known.items():
        nothing = Needs(config["model_type"], 0, 0, None)
        found[name] = _planned(nothing, config, machine)
    return found


def published_names(name: str) -> list[str]:
    """The known models whose name without the organisation this is."""
    known = importlib.import_module("tinkex.engine.model.known").KNOWN
    return [full for full in known if full.rpartition("/")[2] == name]


def _planned(counted: Needs, config: Any, machine: Machine, *, packed: bool = False) -> Needs:
    """The plan on one device, else on as few as have to share the model. Experts in MXFP4 are
    widened if that fits, since packed ones make slower products."""
    sizes = _sizes(config)
    if sizes is None:  # not one of ours
        return _judged(counted, machine)
    packed = packed and sizes.packable > 0
    alone = _judged(_with_sizes(counted, sizes, machine, packed=packed), machine)
    if alone.reason is None:
        return alone
    for ranks, whole in itertools.product(range(2, machine.devices + 1), (False, True)):
        sizes_here = _sizes(config, ranks, whole_experts=whole)
        if sizes_here is not None:
            share = _judged(_with_sizes(counted, sizes_here, machine), machine)
            if share.reason is None:
                return replace(alone, reason=None, ranks=ranks, whole_experts=whole)
    if sizes.packable and not _holds(alone.memory, machine):
        return _judged(_with_sizes(counted, sizes, machine, packed=True), machine)
    return alone


def _sizes(config: Any, ranks: int = 1, *, whole_experts: bool = False) -> Any:
    sizes = importlib.import_module("tinkex.engine.model.sizes")
    try:
        return sizes.sizes_of_raw(config, ranks, whole_experts=whole_experts)
    except ValueError:
        return None


def _with_sizes(needs: Needs, sizes: Any, machine: Machine, *, packed: bool = False) -> Needs:
    """The configuration takes precedence over the files: a vision tower is not loaded."""
    width = machine.width
    held = sizes.weights(width, packed=packed)
    weights = held + (sizes.unpacked * width if packed and machine.device != "cpu" else 0)
    tokens = min(sizes.context, CONTEXT)
    copy = 0 if machine.device == "cpu" else width
    return replace(
        needs,
        parameters=sizes.parameters,
        memory=held,
        packed_experts=packed,
        active=sizes.active,
        context=sizes.context,
        sampling=weights + tokens * sizes.cached * width + sizes.states,
        training=weights + RANK * sizes.adapter * (_RUN_WIDTH + copy),
    )


def _judged(needs: Needs, machine: Machine) -> Needs:
    has = f"this {machine.device} has {_gib(machine.memory)} GiB"
    if not _holds(needs.memory, machine):
        return replace(needs, reason=f"its weights take {_gib(needs.memory)} GiB, {has}")
    if needs.sampling is not None and needs.sampling > machine.memory:
        told = f"with a sequence of {CONTEXT} tokens it takes {_gib(needs.sampling)} GiB, {has}"
        return replace(needs, reason=told)
    if needs.training is not None and needs.training > machine.memory:
        told = f"with a run of rank {RANK} it takes {_gib(needs.training)} GiB, {has}"
        return replace(needs, reason=f"to sample only: {told}")
    return needs


def _holds(weights: int, machine: Machine) -> bool:
    share: float = importlib.import_module("tinkex.engine.model.sizes").WEIGHTS_SHARE
    return weights <= machine.memory * share


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f}"


def _parameters(path: Path) -> int:
    with path.open("rb") as file:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(_count(name, entry) for name, entry in header.items() if name != "__metadata__")


def _count(name: str, entry: dict[str, Any]) -> int:
    """Parameters in a file's tensor. For experts in MXFP4 a byte holds two parameters; scales count
    as none."""
    if name.endswith("_scales"):
        return 0
    shape: list[int] = entry["shape"]
    return math.prod(shape) * (2 if name.endswith("_blocks") else 1)
