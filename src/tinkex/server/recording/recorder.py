"""Records the end of every operation: what is kept of it, and what readers are told.

What it keeps is written in the same commit as the operation's result. So an answered operation is
always in the history. That costs the writing thread one more row, and the event loop a few small
dictionaries.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tinkex.server.clock import Clock
from tinkex.server.operations.base import Conclusion, Prepared
from tinkex.server.operations.log import CREATION, Entry
from tinkex.server.operations.run import Run
from tinkex.server.recording.events import Events
from tinkex.server.recording.samples import SampleRing
from tinkex.server.recording.steps import Measured, values_of
from tinkex.server.storage.database import Store, points
from tinkex.server.storage.database.kept_samples import Source
from tinkex.server.storage.database.points import Point

RECENT = 32
_MOST_FAILING = 1024

OnTimed = Callable[[str, float, float], None]
"""Called with an operation's kind, how long it waited, and how long it was at the engine."""


@dataclass(slots=True)
class Failures:
    """Calls of a run that failed one after the other, and why the newest did."""

    count: int = 0
    since: float = 0.0
    message: str = ""


class Recorder:
    """Records training. `steps` and `failures` count operations since the start."""

    def __init__(self, store: Store, events: Events, samples: SampleRing, clock: Clock) -> None:
        self.failing: dict[str, Failures] = {}
        self.steps = 0
        self.failures = 0
        self._listeners: list[OnTimed] = []
        self._store = store
        self._events = events
        self._samples = samples
        self._recent: dict[str, deque[Point]] = {}
        self._clock = clock

    def measured(
        self, run: Run, entry: Entry, prepared: Prepared | None, conclusion: Conclusion
    ) -> Measured | None:
        """What an operation adds to its run's history, if anything."""
        counts = entry.kind.is_step or entry.kind.changes == "gradient"
        if conclusion.outcome.failed or not counts:
            return None
        wait_s, compute_s = self._times(entry)
        return Measured(
            run=run.model_id,
            seq_id=entry.seq_id,
            at=self._clock.now(),
            metrics=conclusion.metrics,
            ends_step=entry.kind.is_step,
            tokens=0 if prepared is None else prepared.tokens,
            datums=conclusion.datums,
            wait_s=wait_s,
            compute_s=compute_s,
        )

    def listen(self, listener: OnTimed) -> None:
        """Register a listener for every operation's times."""
        self._listeners.append(listener)

    def _times(self, entry: Entry) -> tuple[float, float]:
        """How long an operation that ends now waited for its turn, and how long its turn took."""
        now = self._clock.monotonic()
        begun = now if entry.begun is None else entry.begun
        return max(0.0, begun - entry.arrived), max(0.0, now - begun)

    def ended(self, run: Run, entry: Entry, conclusion: Conclusion, point: Point | None) -> None:
        """An operation ended, well or not, and its end is on disk."""
        self.steps += entry.kind.is_step and not conclusion.outcome.failed
        self.failures += conclusion.outcome.failed
        wait_s, compute_s = self._times(entry)
        for listener in self._listeners:
            listener(entry.kind.name, wait_s, compute_s)
        self._note_failure(run, conclusion)
        if point is not None:
            if point.done and run.model_id in self._recent:
                self._recent[run.model_id].append(point)
            self._events.publish(run.tenant, "point", point_event(run.model_id, point))
        if conclusion.example is not None:
            source = Source(run.tenant, run.row.base_model, run.model_id)
            self._samples.trained(source, *conclusion.example)
        if conclusion.path is not None:
            data = {"run": run.model_id, "path": conclusion.path}
            self._events.publish(run.tenant, "checkpoint", data)
        if entry.seq_id == CREATION and not conclusion.outcome.failed:
            self.changed(run.tenant, run.model_id, "created")

    def changed(self, tenant: str, run: str, change: str) -> None:
        """A run was created, changed, ended or deleted."""
        self._events.publish(tenant, "run", {"run": run, "change": change})
        if change in ("ended", "deleted"):
            self.failing.pop(run, None)
            self._recent.pop(run, None)

    async def recent(self, run: Run) -> Sequence[Point]:
        """The newest finished points of a live run, oldest first."""
        known = self._recent.get(run.model_id)
        if known is not None:
            return known
        arriving = self._recent[run.model_id] = deque[Point](maxlen=RECENT)
        found = await self._store.read(points.newest, run.model_id, RECENT)
        stored = {point.n: point for point in reversed(found) if point.done}
        both = stored | {point.n: point for point in arriving}
        joined = deque(both.values(), maxlen=RECENT)
        if self._recent.get(run.model_id) is arriving:
            self._recent[run.model_id] = joined
        return joined

    def _note_failure(self, run: Run, conclusion: Conclusion) -> None:
        if not conclusion.outcome.failed:
            self.failing.pop(run.model_id, None)
            return
        if len(self.failing) >= _MOST_FAILING:
            self.failing.pop(next(iter(self.failing)))
        known = self.failing.setdefault(run.model_id, Failures(since=self._clock.now()))
        known.count += 1
        known.message = str(json.loads(conclusion.outcome.body)["error"])


def point_event(run: str, point: Point) -> Mapping[str, object]:
    return {
        "run": run,
        "n": point.n,
        "step": point.step,
        "at": point.at,
        "done": point.done,
        "values": {name: float(f"{value:.7g}") for name, value in values_of(point).items()},
    }
