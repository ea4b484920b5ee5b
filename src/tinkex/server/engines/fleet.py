"""How many engines serve each model and what of the machine each of them gets.

Torch is not asked: the server process never loads it. GPUs are counted by their driver, which
knows what this process may see.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from tinkex.server.engines.worker import EngineSpec
from tinkex.server.settings import Settings

Wanted: TypeAlias = int | Literal["auto"]
VARIABLE = "TINKEX_ENGINES"
MOST = 256
"""Of each model on one host."""
_ON_GPU = ("auto", "cuda")
"""Devices that mean: whatever GPU there is."""


class FleetProblem(ValueError):
    """Why a machine cannot have so many engines, in one line that says what to do."""


def wanted_in(environ: Mapping[str, str]) -> Wanted:
    """How many an environment asks for; one where it says nothing."""
    text = environ.get(VARIABLE, "") or "1"
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise FleetProblem(f"{VARIABLE}={text[:40]!r}: give auto, or a number from 1 to {MOST}")
    return int(text)


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
    wanted: Wanted, models: int, device: str, gpus: int
) -> tuple[int, tuple[str, ...]]:
    """Engines for each model, and the devices they are dealt to in turn; none: `device` for all.

    `auto` is one engine per GPU, shared out between the models, and one per model on a CPU.
    """
    if device not in _ON_GPU or gpus == 0:
        count = 1 if wanted == "auto" else wanted
        if count > 1 and device not in (*_ON_GPU, "cpu"):
            raise FleetProblem(f"--engines {count}: {device} is one device, and an engine takes it")
        return count, ()
    count = max(1, gpus // models) if wanted == "auto" else wanted
    if count > gpus:
        raise FleetProblem(
            f"--engines {count}: this machine shows {gpus} GPUs, and an engine takes one: give "
            f"--engines {gpus} or less, or --device cpu"
        )
    return count, tuple(f"cuda:{number}" for number in range(gpus)) if gpus > 1 else ()


def engine_specs(settings: Settings) -> list[EngineSpec]:
    """Every engine of a server."""
    share = _share(settings)
    devices = _deal(settings)
    return [
        EngineSpec(model, index, next(devices), share)
        for model in settings.models
        for index in range(settings.engines)
    ]


def _deal(settings: Settings) -> Iterator[str]:
    devices = settings.devices or (settings.device,)
    while True:
        yield from devices


def _share(settings: Settings) -> int | None:
    """Threads of one engine where several of a model share the cores of this machine."""
    if settings.engines == 1 or settings.devices or settings.ray:
        return None
    return max(1, len(os.sched_getaffinity(0)) // settings.engines)
