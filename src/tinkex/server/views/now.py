"""The server at this moment: engines, memory, queue with its reasons, who uses what, advice.

Everything is read from what the parts keep in memory anyway, so that looking costs little and may
be done every second.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tinkex.server.engines.engine import Engine
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.polls import Futures
from tinkex.server.recording import advice as advices
from tinkex.server.recording.advice import Advice, RunFacts
from tinkex.server.recording.recorder import Failures, Recorder
from tinkex.server.recording.watch import Watch
from tinkex.server.sampling.lanes import Load
from tinkex.server.settings import Settings
from tinkex.server.storage.disk_watch import DiskWatch, free_bytes
from tinkex.server.training.scheduler import Scheduler
from tinkex.server.views.json_shapes import run_name
from tinkex.server.views.viewers import Viewer
from tinkex.wire.limits import QUEUE_ACTIVE, QUEUE_PAUSED_CAPACITY
from tinkex.wire.package_version import package_version

_ADVICE_S = 1.0


class Now:
    """The present of one server."""

    def __init__(
        self,
        watch: Watch,
        scheduler: Scheduler,
        futures: Futures,
        recorder: Recorder,
        disk: DiskWatch,
        settings: Settings,
    ) -> None:
        live = watch.parts
        self._sessions = live.sessions
        self._engines, self._runs, self._sampling = live.engines, live.runs, live.sampling
        self._scheduler = scheduler
        self._futures = futures
        self._watch = watch
        self._recorder = recorder
        self._disk = disk
        self._clock = live.clock
        self._settings = settings
        self._advised_at = float("-inf")
        self._advice: list[Advice] = []

    async def show(self, viewer: Viewer) -> dict[str, Any]:
        """The answer of `/api/dashboard/now`."""
        speeds = self._watch.speeds()
        return {
            "at": self._clock.now(),
            "started_at": self._watch.started_at,
            "version": package_version(),
            "viewer": viewer._asdict(),
            "engines": [self._engine(engine) for engine in self._engines],
            "queue": self._queue(viewer),
            "tokens_per_s": _rounded(speeds),
            "totals": self._watch.totals(),
            "tenants": [self._tenant(tenant) for tenant in self._active(viewer)],
            "limits": [each for each in self._limits(viewer) if each["used"] > each["limit"] / 2],
            "disk": {"free_bytes": _free(self._settings.home)},
            "advice": await self.advice(viewer),
        }

    async def advice(self, viewer: Viewer) -> list[dict[str, Any]]:
        """What a viewer should look at."""
        now = self._clock.monotonic()
        if now - self._advised_at >= _ADVICE_S:
            self._advised_at = now
            self._advice = [each async for each in self._all_advice()]
        names = {run.model_id: run_name(run.row, None) for run in self._runs}
        mine = [each for each in self._advice if viewer.sees(each.tenant)]
        return [{**asdict(each), "name": names.get(each.run or "")} for each in mine]

    # ---- engines

    def _engine(self, engine: Engine) -> dict[str, Any]:
        facts, stats = engine.facts, self._watch.stats.get(engine.name)
        pages = (
            None
            if stats is None
            else {
                "used_pages": stats.pages_used,
                "total_pages": stats.pages_total,
            }
        )
        return {
            "name": engine.name,
            "model": engine.model,
            "phase": "asleep" if engine.is_asleep else engine.phase,
            "reason": engine.condition,
            "draining": engine.draining,
            "life": engine.life,
            "device": None if facts is None else facts.device,
            "dtype": None if facts is None else facts.dtype,
            "parameters": None if facts is None else facts.parameters,
            "max_context": None if facts is None else facts.max_context,
            "deaths": engine.deaths,
            "busy": round(self._watch.busy(engine), 3),
            "operations": self._scheduler.in_flight(engine),
            "samples": self._sampling.lanes.sequences(engine),
            "runs": {
                "resident": sum(run.residence == engine.residence for run in self._runs),
                "places": self._settings.scheduling.resident_runs,
            },
            "adapters": None if stats is None else stats.weights,
            "memory": self.memory(engine),
            "cache": pages,
        }

    def memory(self, engine: Engine) -> dict[str, Any]:
        """What is in an engine's memory, and what it is planned for."""
        facts, stats = engine.facts, self._watch.stats.get(engine.name)
        if facts is None:
            return {"total_bytes": None, "parts": [], "plan": []}
        parts = {"model": facts.memory_plan.get("model", 0)}
        if stats is not None:
            parts["adapters"] = stats.adapter_bytes
            parts["cache in use"] = stats.pages_used * facts.page_bytes
            parts["cache free"] = (stats.pages_total - stats.pages_used) * facts.page_bytes
        if stats is not None and stats.host_bytes:
            parts["runs in the host's memory"] = stats.host_bytes
        return {
            "total_bytes": facts.memory_bytes,
            "parts": [{"name": name, "bytes": size} for name, size in parts.items()],
            "plan": [{"name": name, "bytes": size} for name, size in facts.memory_plan.items()],
        }

    # ---- the queue

    def _queue(self, viewer: Viewer) -> list[dict[str, Any]]:
        mine = [run for run in self._runs if viewer.sees(run.tenant)]
        waiting = [shown for run in mine if (shown := self._waiting(run)) is not None]
        loads = [load for load in self._sampling.loads() if viewer.sees(load.tenant)]
        waiting += [self._sampling_load(load) for load in loads]
        return sorted(waiting, key=lambda each: -each["waited_s"])

    def _waiting(self, run: Run) -> dict[str, Any] | None:
        open_ = [entry for entry in run.log.entries.values() if _is_open(entry)]
        if not open_:
            return None
        first = min(open_, key=lambda entry: entry.seq_id)
        state, reason = self._futures.explain(first.request_id)
        return {
            "kind": "training",
            "run": run.model_id,
            "name": run_name(run.row, None),
            "tenant": run.tenant,
            "model": run.row.base_model,
            "engine": None if run.residence is None else run.residence.engine,
            "count": len(open_),
            "running": sum(entry.state == "running" for entry in open_),
            "state": state,
            "reason": reason,
            "waited_s": round(max(0.0, self._clock.monotonic() - first.arrived), 3),
        }

    def _sampling_load(self, load: Load) -> dict[str, Any]:
        pool = self._engines.get(load.model)
        reason = "the engine is sampling"
        if not pool.takes_work:
            reason = pool.reason
        elif load.waiting:
            reason = f"{load.sequences} sequences of this key are with the engine; the rest follows"
        return {
            "kind": "sampling",
            "run": None,
            "name": None,
            "tenant": load.tenant,
            "model": load.model,
            "engine": None,
            "count": load.waiting + load.sequences,
            "running": load.sequences,
            "state": QUEUE_ACTIVE if pool.takes_work else QUEUE_PAUSED_CAPACITY,
            "reason": reason,
            "waited_s": round(load.waited_s, 3),
        }

    # ---- tenants and limits

    def _active(self, viewer: Viewer) -> list[str]:
        if not viewer.operator:
            return [viewer.tenant]
        return sorted({run.tenant for run in self._runs} | self._sampling.tenants())

    def _tenant(self, tenant: str) -> dict[str, Any]:
        runs = [run for run in self._runs if run.tenant == tenant]
        return {
            "tenant": tenant,
            "runs": len(runs),
            "operations": sum(run.log.pending_count() for run in runs),
            "samples": self._sampling.of_tenant(tenant),
            "tokens_per_s": _rounded(self._watch.speeds(tenant)),
        }

    def _limits(self, viewer: Viewer) -> list[dict[str, Any]]:
        found = []
        for tenant in self._active(viewer):
            limits = self._settings.limits_of(tenant)
            runs = [run for run in self._runs if run.tenant == tenant]
            busiest = max((run.log.pending_count() for run in runs), default=0)
            held = sum(run.log.retained_bytes for run in runs)
            used = {
                "samples_per_tenant": self._sampling.of_tenant(tenant),
                "runs_per_tenant": len(runs),
                "pending_operations_per_run": busiest,
                "pending_bytes_per_tenant": held,
            }
            found += [
                {"name": name, "tenant": tenant, "used": amount, "limit": getattr(limits, name)}
                for name, amount in used.items()
            ]
        return found

    # ---- advice

    def oldest_wait_s(self) -> float:
        """How long the work that waits longest has waited."""
        everything = Viewer("", operator=True)
        return max((each["waited_s"] for each in self._queue(everything)), default=0.0)

    async def _all_advice(self) -> AsyncIterator[Advice]:
        now = self._clock.now()
        for engine in self._engines:
            if engine.phase == "restarting" or (engine.phase == "starting" and engine.deaths):
                yield advices.about_engine(engine.name, engine.reason, engine.deaths, now)
        if self._disk.is_low and (free := _free(self._settings.home)) is not None:
            yield advices.about_disk(free, now)
        for limit in self._limits(Viewer("", operator=True)):
            found = advices.about_limit(**limit, now=now)
            if found is not None:
                yield found
        for run in self._runs:
            for each in advices.about_run(await self._facts(run, now)):
                yield each

    async def _facts(self, run: Run, now: float) -> RunFacts:
        failures = self._recorder.failing.get(run.model_id, Failures())
        recent = await self._recorder.recent(run)
        busy = run.active or run.log.unfinished()
        idle = 0.0 if busy or not recent else max(0.0, now - recent[-1].at)
        return RunFacts(
            run.model_id,
            run.tenant,
            now,
            idle,
            recent,
            run.broken,
            self._sessions.silent_s(run.row.session_id),
            failures.count,
            failures.since,
            failures.message,
        )


def _is_open(entry: Entry) -> bool:
    return entry.state in ("accepting", "waiting", "running")


def _rounded(speeds: dict[str, float]) -> dict[str, float]:
    return {kind: round(speed, 1) for kind, speed in speeds.items()}


def _free(home: Path) -> int | None:
    try:
        return free_bytes(home)
    except OSError:
        return None
