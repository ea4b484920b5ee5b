"""What a model folder needs of this machine: its family, its memory, and whether it fits.

Read from `config.json` and the headers of its safetensors files; no weight is touched. Memory is
that of the weights as the engine holds them, bfloat16 on a GPU and float32 on a CPU, once for
training and sampling together. Beside it come caches and adapters, which take what is left.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHARE = 0.9
"""Of the memory there is that weights may take: caches, adapters and activations need the rest."""

_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Where an engine would run, and the memory it finds there."""

    device: str
    memory: int

    @property
    def width(self) -> int:
        """Bytes of one weight."""
        return 4 if self.device == "cpu" else 2


@dataclass(frozen=True, slots=True)
class Needs:
    family: str | None
    parameters: int
    memory: int
    reason: str | None
    """Why it does not fit; None if it does."""


def this_machine() -> Machine:
    """The first GPU if there is one, else the CPU."""
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        try:
            told = subprocess.run(
                asked, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True
            )
            return Machine("gpu", int(told.stdout.split()[0]) << 20)
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            pass
    return Machine("cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def model_needs(folder: Path, machine: Machine) -> Needs | None:
    """None for a folder whose files do not tell."""
    try:
        family = json.loads((folder / "config.json").read_text()).get("model_type")
        parameters = sum(_parameters(path) for path in folder.glob("*.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    memory = parameters * machine.width
    reason = None
    if memory > machine.memory * _SHARE:
        reason = (
            f"its weights take {memory / 2**30:.0f} GiB, this {machine.device} has "
            f"{machine.memory / 2**30:.0f} GiB"
        )
    return Needs(family, parameters, memory, reason)


def _parameters(path: Path) -> int:
    with path.open("rb") as file:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(_count(name, entry) for name, entry in header.items() if name != "__metadata__")


def _count(name: str, entry: dict[str, Any]) -> int:
    """Of experts in MXFP4 a byte holds two parameters, and scales are none."""
    if name.endswith("_scales"):
        return 0
    shape: list[int] = entry["shape"]
    return math.prod(shape) * (2 if name.endswith("_blocks") else 1)
