"""How many engines serve each model, and which share of the machine each of them gets.

Torch is not asked, because the server process never loads it. GPUs are counted by their driver,
which knows what this process may see.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from tinkex.server.engines.worker import EngineSpec
from tinkex.server.settings import Settings


class Span(NamedTuple):
    """A number of engines that follows the load."""

    fewest: int
    most: int

    def __str__(self) -> str:
        return f"{self.fewest}-{self.most}"


Wanted: TypeAlias = int | Span | Literal["auto"]
VARIABLE = "TINKEX_ENGINES"
MOST = 256
"""The most engines of one model on one host."""
_ON_GPU = ("auto", "cuda")
"""Devices that stand for any GPU there is."""


class FleetProblem(ValueError):
    """Why a machine cannot have so many engines, in one line with the fix."""


def wanted_in(environ: Mapping[str, str]) -> Wanted:
    """The number of engines that an environment asks for; one if it names none."""
    text = environ.get(VARIABLE, "") or "1"
    try:
        return read_wanted(text)
    except FleetProblem as problem:
        raise FleetProblem(f"{VARIABLE}={problem}") from None


def read_wanted(text: str) -> Wanted:
    """`auto`, `4`, or `1-4` for a number that follows the load. Raises `FleetProblem`."""
    if text == "auto":
        return "auto"
    match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", text, re.ASCII)
    fewest = int(match[1]) if match else 0
    most = int(match[2] or fewest) if match else 0
    if not 1 <= fewest <= most <= MOST:
        raise FleetProblem(
            f"{text[:40]!r}: give auto, a number from 1 to {MOST}, or a span such as 1-4"
        )
    return fewest if fewest == most else Span(fewest, most)


def fewest_of(wanted: Wanted) -> int | None:
    """How many are kept awake; None means all."""
    return wanted.fewest if isinstance(wanted, Span) else None


def visible_gpus() -> int:
    """How many GPUs this process may use; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


def choose_fleet(
    wanted: Wanted, models: int, device: str, gpus: int, ranks: int = 1
) -> tuple[int, tuple[str, ...]]:
    """Engines for each model, and the devices they get in turn; without any, all use `device`.
    `auto` is one engine per GPU, or per `ranks` neighbouring GPUs, shared out between the models;
    on a CPU it is one per model. An engine's device is the first of its GPUs."""
    most = wanted.most if isinstance(wanted, Span) else wanted
    if device not in _ON_GPU or gpus == 0:
        count = 1 if most == "auto" else most
        if count > 1 and device not in (*_ON_GPU, "cpu"):
            raise FleetProblem(
                f"--engines {wanted}: {device} is one device, and an engine takes it"
            )
        return count, ()
    room = gpus // ranks
    if room == 0:
        raise FleetProblem(
            f"--engine ranks={ranks}: this machine shows {gpus} GPUs: give ranks={gpus} or less, "
            "or --device cpu"
        )
    count = max(1, room // models) if most == "auto" else most
    if count > room:
        each = "one" if ranks == 1 else str(ranks)
        raise FleetProblem(
            f"--engines {wanted}: this machine shows {gpus} GPUs, and an engine takes {each}: give "
            f"--engines {room} or less, or --device cpu"
        )
    firsts = range(0, room * ranks, ranks)
    return count, tuple(f"cuda:{number}" for number in firsts) if gpus > 1 else ()


def check_memory(engines: int, folders: Sequence[Path], dtype: str, packed: float | None) -> None:
    """Raises `FleetProblem` if the engines cannot hold even their weights together. Each has its
    own copy, and a machine that runs out of memory takes down more than this server. `packed` tells
    whether experts in MXFP4 stay packed; with None, where widened ones do not fit into an engine's
    share."""
    if engines == 1:  # a model that is too large for the machine says so itself
        return
    from tinkex.server.engines.model_needs import PROCESS_BYTES, cpu_machine, model_needs

    machine = cpu_machine()
    share = machine.memory // (engines * max(1, len(folders)))
    given = replace(machine, memory=share if packed is None else sys.maxsize)
    found = [model_needs(folder, given, packed=bool(packed)) for folder in folders]
    width = 2 if dtype == "bfloat16" else machine.width
    weights = sum(
        needs.memory if needs.packed_experts else width * needs.parameters
        for needs in found
        if needs is not None
    )
    each = weights + PROCESS_BYTES * len(folders)
    if engines * each > machine.memory:
        raise FleetProblem(
            f"--engines {engines}: their processes and weights take {engines * each / 2**30:.0f} "
            f"GiB, this machine has {machine.memory / 2**30:.0f}: give --engines "
            f"{max(1, machine.memory // each)} or less"
        )


def engine_specs(settings: Settings) -> list[EngineSpec]:
    """Every engine of a server."""
    threads, memory = _threads(settings), _memory_share(settings)
    devices = _deal(settings)
    return [
        EngineSpec(model, index, next(devices), threads, memory)
        for model in settings.models
        for index in range(settings.engines)
    ]


def _deal(settings: Settings) -> Iterator[str]:
    devices = settings.devices or (settings.device,)
    while True:
        yield from devices


def _memory_share(settings: Settings) -> float:
    """An engine's share of this machine's memory, if all engines are on it. Ray divides its nodes'
    memory itself."""
    if settings.ray or not settings.models:
        return 1.0
    return 1 / (settings.engines * len(settings.models))


def _threads(settings: Settings) -> int | None:
    """Threads of one engine when several engines of a model share this machine's cores."""
    if settings.engines == 1 or settings.devices or settings.ray:
        return None
    return max(1, len(os.sched_getaffinity(0)) // settings.engines)
