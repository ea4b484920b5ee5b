"""Watches the server as a whole: speeds over the last seconds, and a history of its own.

`look` is called every two seconds and takes differences of counters that other parts keep. Every
ten seconds with activity it adds a point. Engines are asked for their memory now and then, one
question at a time each, so that a busy one is not asked twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from tinkex.engine.messages import Stats
from tinkex.server.clock import Clock
from tinkex.server.engines.engine import CommandFailed, Engine, EngineLost
from tinkex.server.engines.pool import Engines
from tinkex.server.operations.queue_reasons import Cause, QueueReasons
from tinkex.server.operations.runs import Runs
from tinkex.server.recording import folding
from tinkex.server.recording.samples import SampleRing
from tinkex.server.recording.steps import single
from tinkex.server.sampling.jobs import Sampling
from tinkex.server.storage.database import Store, points
from tinkex.server.storage.database.points import SERVER, Point
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.storage.database.usage import Measure
from tinkex.server.tenancy.sessions import Sessions
from tinkex.server.tenancy.usage import Meter

logger = logging.getLogger(__name__)

LOOK_S = 2.0
POINT_LOOKS = 5
FOLD_LOOKS = 15
KINDS: dict[Measure, str] = {
    "training": "training",
    "sampling_prefill": "prefill",
    "sampling_sample": "sampled",
}
"""Measures of use, as people read them."""


@dataclass(frozen=True, slots=True)
class Look:
    """Counters as they stood at a moment of the monotonic clock."""

    at: float
    totals: Mapping[Measure, float]
    by_tenant: Mapping[str, Mapping[Measure, float]]
    busy: Mapping[str, float] = field(default_factory=dict)


class LiveParts(NamedTuple):
    """Where something is going on that can be watched."""

    engines: Engines  # what computes
    sessions: Sessions  # whose scripts are heard of
    runs: Runs  # what is trained
    sampling: Sampling  # what is drawn
    reasons: QueueReasons  # why something waits
    clock: Clock  # when that is


class Watch:
    """Speeds and loads of one server."""

    def __init__(
        self,
        store: Store,
        samples: SampleRing,
        meter: Meter,
        live: LiveParts,
    ) -> None:
        self.parts = live
        clock = live.clock
        self.stats: dict[str, Stats] = {}
        self.started_at = clock.now()
        self._store = store
        self._samples = samples
        self._meter = meter
        self._engines, self._runs, self._sampling = live.engines, live.runs, live.sampling
        self._clock = clock
        self._looks: deque[Look] = deque([self._look()], maxlen=POINT_LOOKS + 1)
        self._asking: dict[str, asyncio.Task[None]] = {}

    def speeds(self, tenant: str | None = None) -> dict[str, float]:
        """Tokens a second over the last seconds, by kind; of a tenant if asked."""
        first, last = self._looks[0], self._look()
        seconds = max(last.at - first.at, 1e-3)
        before = first.totals if tenant is None else first.by_tenant.get(tenant, {})
        after = last.totals if tenant is None else last.by_tenant.get(tenant, {})
        return {
            kind: max(0.0, after.get(measure, 0.0) - before.get(measure, 0.0)) / seconds
            for measure, kind in KINDS.items()
        }

    def totals(self) -> dict[str, int]:
        return {kind: round(self._meter.totals.get(name, 0.0)) for name, kind in KINDS.items()}

    def busy(self, engine: Engine) -> float:
        """The part of the last seconds in which an engine had work."""
        first, name = self._looks[0], engine.name
        seconds = max(self._clock.monotonic() - first.at, 1e-3)
        return min(1.0, (engine.busy_seconds() - first.busy.get(name, 0.0)) / seconds)

    async def live(self) -> None:
        """Look for ever; write down what waits."""
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            looks += 1
            try:
                await self._samples.flush()
                await self.look(leave_point=looks % POINT_LOOKS == 0)
                if looks % FOLD_LOOKS == 0:
                    await self._fold()
            except Exception:  # a full disk, say: it must not end the watching
                logger.exception("recording failed; it goes on")

    async def _fold(self) -> None:
        """Shorten histories a block at a time: between two of them every other write has its turn,
        and what takes long is done where nobody waits for it."""
        for owner in await self._store.query(folding.crowded):
            while (found := await self._store.query(folding.next_fold, owner)) is not None:
                if not await self._store.write(found.write):
                    break  # the run was deleted meanwhile

    async def look(self, *, leave_point: bool) -> None:
        """Note where the counters stand and, if anything happened, leave a point of history."""
        if leave_point or not self.stats:
            self._ask_engines()
        if leave_point:
            values = self._values()
            if any(values[name] for name in _ACTIVE):
                await self._store.write(_put, self._clock.now(), values)
        self._looks.append(self._look())

    async def stop(self) -> None:
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        await self._samples.flush()

    def _look(self) -> Look:
        by_tenant = {tenant: dict(used) for tenant, used in self._meter.by_tenant.items()}
        busy = {engine.name: engine.busy_seconds() for engine in self._engines}
        return Look(self._clock.monotonic(), dict(self._meter.totals), by_tenant, busy)

    def _values(self) -> dict[str, float]:
        speeds = self.speeds()
        loads = [self.busy(engine) for engine in self._engines]
        pages = sum(stats.pages_total for stats in self.stats.values())
        active = {run.tenant for run in self._runs if run.log.pending_count() or run.active}
        return {
            **{f"{kind}_tokens_per_s": single(speed) for kind, speed in speeds.items()},
            "busy": single(sum(loads) / max(1, len(loads))),
            "operations_waiting": float(sum(run.log.pending_count() for run in self._runs)),
            **{f"waiting_for_{cause}": float(count) for cause, count in self._causes().items()},
            "samples_waiting": float(self._sampling.in_flight()),
            "cache_used": single(
                sum(stats.pages_used for stats in self.stats.values()) / pages if pages else 0.0
            ),
            "adapter_bytes": single(sum(stats.adapter_bytes for stats in self.stats.values())),
            "runs_live": float(len(list(self._runs))),
            "tenants_active": float(len(active | self._sampling.tenants())),
        }

    def _causes(self) -> dict[Cause, int]:
        """How many operations wait, by what they wait for."""
        found: dict[Cause, int] = dict.fromkeys(get_args(Cause), 0)
        for run in self._runs:
            if count := run.log.pending_count():
                found[self.parts.reasons.cause(run)] += count
        return found

    def _ask_engines(self) -> None:
        for engine in self._engines:
            name = engine.name
            asked = self._asking.get(name)
            if engine.is_ready and (asked is None or asked.done()):
                task = asyncio.get_running_loop().create_task(self._ask(engine))
                self._asking[name] = task

    async def _ask(self, engine: Engine) -> None:
        with contextlib.suppress(EngineLost, CommandFailed):
            stats = await engine.stats()
            if stats is not None:
                self.stats[engine.name] = stats


_ACTIVE = (
    "training_tokens_per_s",
    "prefill_tokens_per_s",
    "sampled_tokens_per_s",
    "operations_waiting",
    "samples_waiting",
)


def _put(db: Transaction, now: float, values: Mapping[str, float]) -> None:
    last = points.newest(db, SERVER, 1)
    n = last[0].n + 1 if last else 1
    points.put(db, SERVER, Point(n, n, n, now, True, values))
