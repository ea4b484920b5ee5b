"""Mirrors: a run's metrics, step by step, also in TensorBoard, Weights & Biases or trackio.

A subscriber of the event bus like any other. The calls of a step become one record when its
optimizer step has ended; records are written on a thread of their own, so training never waits for
a logbook. None of the packages is a dependency: the one that is named is imported when it is named.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from tinkex.client.events.bus import TRAINING_MEASURED, Event, EventBus, default_bus

logger = logging.getLogger("tinkex.events")

_CLOSE_S = 30.0


class Logbook(Protocol):
    """Where records go. Called from one thread."""

    def write(self, run: str, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def attach_mirror(
    target: str | Callable[[str, int, Mapping[str, float]], None],
    *,
    bus: EventBus | None = None,
    **settings: Any,
) -> Callable[[], None]:
    """Write every training step of this process to a logbook too.

    ``target`` is ``"tensorboard:FOLDER"``, ``"wandb:PROJECT"``, ``"trackio:PROJECT"``, or a
    function of a run's id, the step and its numbers. ``settings`` go to that package's own way to
    begin. Returns a function that writes what is left and ends it; the end of the process does so
    too.
    """
    mirror = _Mirror(_Function(target) if callable(target) else _opened(target, settings))
    unsubscribe = (bus or default_bus).subscribe(mirror.hear, TRAINING_MEASURED)

    def detach() -> None:
        unsubscribe()
        mirror.close()
        atexit.unregister(detach)

    atexit.register(detach)
    return detach


@dataclass
class _Step:
    """What the calls of a step said, until it ends."""

    count: int = 0
    values: dict[str, float] = field(default_factory=dict)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Sums add up over a step's calls; of the rest the newest counts."""
        for name, value in metrics.items():
            before = self.values.get(name, 0.0) if name.endswith(":sum") else 0.0
            self.values[name] = before + value

    def end(self, metrics: Mapping[str, float]) -> tuple[int, dict[str, float]]:
        self.count = int(metrics.get("optim/step", self.count + 1))
        found, self.values = {**self.values, **metrics}, {}
        if "loss:sum" in found:
            found["loss"] = found["loss:sum"] / _shares(found)
        found.pop("optim/step", None)
        return self.count, found


def _shares(found: Mapping[str, float]) -> float:
    """What a loss is divided by to be read: the tokens that count. A loss of the user's own is as
    they made it; only the pass that carries its gradient has tokens."""
    return 1.0 if "surrogate_loss:sum" in found else found.get("tokens:sum") or 1.0


class _Mirror:
    """Gathers steps where events are heard, and writes them elsewhere."""

    def __init__(self, logbook: Logbook) -> None:
        self._logbook = logbook
        self._steps: dict[str, _Step] = {}
        self._records: queue.SimpleQueue[tuple[str, int, dict[str, float]] | None]
        self._records = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="tinkex-mirror", daemon=True)
        self._thread.start()

    def hear(self, event: Event) -> None:
        run, metrics = event.data["model_id"], event.data["metrics"]
        step = self._steps.setdefault(run, _Step())
        if event.data["kind"] == "optim_step":
            self._records.put((run, *step.end(metrics)))
        else:
            step.add(metrics)

    def close(self) -> None:
        if self._thread.is_alive():
            self._records.put(None)
            self._thread.join(_CLOSE_S)

    def _write(self) -> None:
        """A logbook that fails is said to once, and left alone from then on."""
        is_good = True
        while (record := self._records.get()) is not None:
            is_good = is_good and self._tried(partial(self._logbook.write, *record))
        self._tried(self._logbook.close)

    def _tried(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except Exception:
            logger.exception("the mirror %s failed and gets nothing more", self._logbook)
            return False
        return True


class _Function:
    def __init__(self, function: Callable[[str, int, Mapping[str, float]], None]) -> None:
        self._function = function

    def write(self, run: str, step: int, values: Mapping[str, float]) -> None:
        self._function(run, step, values)

    def close(self) -> None:
        """Nothing to close."""


class TensorBoard:
    """A folder of event files, one for each run. Needs ``tensorboardX``, or ``tensorboard`` with
    torch."""

    def __init__(self, folder: str, settings: Mapping[str, Any]) -> None:
        self._make = _first("tensorboardX", "torch.utils.tensorboard").SummaryWriter
        self._folder = Path(folder or "runs")
        self._settings = settings
        self._writers: dict[str, Any] = {}

    def write(self, run: str, step: int, values: Mapping[str, float]) -> None:
        writer = self._writers.get(run)
        if writer is None:
            folder = str(self._folder / run.replace(":", "_"))
            writer = self._writers[run] = self._make(folder, **self._settings)
        for name, value in values.items():
            writer.add_scalar(name.replace(":", "/"), value, step)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class Project:
    """A project of ``wandb`` or ``trackio``, whose ways to begin, log and finish are the same: a
    run there for each run here, under the same name."""

    def __init__(self, package: str, project: str, settings: Mapping[str, Any]) -> None:
        self._package = _first(package)
        apart = {"reinit": "create_new"} if package == "wandb" else {}
        if package == "wandb":
            # It then registers what it does at the end of the process, which ends all its runs;
            # what is registered later, as ours is, comes before that.
            self._package.setup()
        self._settings = {"project": project or "tinkex", **apart, **settings}
        self._runs: dict[str, Any] = {}

    def write(self, run: str, step: int, values: Mapping[str, float]) -> None:
        known = self._runs.get(run)
        if known is None:
            known = self._runs[run] = self._package.init(**{"name": run, **self._settings})
        known.log(dict(values), step=step)

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()


def _opened(target: str, settings: Mapping[str, Any]) -> Logbook:
    kind, _, place = target.partition(":")
    if kind == "tensorboard":
        return TensorBoard(place, settings)
    if kind in ("wandb", "trackio"):
        return Project(kind, place, settings)
    raise ValueError(
        "a mirror is tensorboard:FOLDER, wandb:PROJECT, trackio:PROJECT or a function, "
        f"not {target!r}"
    )


def _first(*packages: str) -> Any:
    """The first of some packages that is installed."""
    for package in packages:
        try:
            return import_module(package)
        except ImportError:
            continue
    raise ImportError(
        f"this mirror needs a package that is not installed: pip install {packages[0]}"
    )
