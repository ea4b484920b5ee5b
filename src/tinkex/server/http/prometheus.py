"""What a server shows of itself to Prometheus: its requests, queues, engines and tokens.

Labels come from routes and served models only; no tenant, key or name that a user chose appears.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import get_args

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.server.core import Core
from tinkex.server.engines.engine import Engine
from tinkex.server.http.metrics import Labels, Registry
from tinkex.server.recording.advice import Kind
from tinkex.server.storage.database import checkpoints, snapshots
from tinkex.server.storage.disk_watch import free_bytes
from tinkex.server.views.viewers import Viewer


class Requests:
    """Counts requests by route and status, and how long they took."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self.registry = Registry()
        self._paths = {route.endpoint: route.path for route in routes if isinstance(route, Route)}
        self._count = self.registry.counter("tinkex_requests_total", "Requests answered.")
        self._seconds = self.registry.histogram(
            "tinkex_request_seconds", "Time to answer a request, held polls included."
        )
        self._cuts = self.registry.counter(
            "tinkex_connections_cut_total", "Connections cut because their client dawdled."
        )

        self._waited = self.registry.histogram(
            "tinkex_operation_wait_seconds", "Time a training operation waited for its turn."
        )
        self._computed = self.registry.histogram(
            "tinkex_operation_engine_seconds", "Time a training operation was with its engine."
        )

    def was_timed(self, kind: str, wait_s: float, engine_s: float) -> None:
        """A training operation ended."""
        self._waited.observe(wait_s, kind=kind)
        self._computed.observe(engine_s, kind=kind)

    def was_cut(self, reason: str) -> None:
        """A connection was cut; `reason` is one of few."""
        self._cuts.add(reason=reason)

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        route = self._paths.get(scope.get("endpoint", self), "other")
        self._count.add(route=route, status=str(status))
        self._seconds.observe(seconds, route=route)


class Measured:
    """ASGI middleware that tells `requests` about every answer."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._requests.observe(scope, status, time.perf_counter() - begun)


async def state(core: Core) -> Registry:
    """The server's present state, read when it is rendered."""
    count, size = await core.store.query(checkpoints.total)
    snapshot_bytes = await core.store.query(snapshots.size_bytes)
    registry = Registry()
    registry.gauge("tinkex_ready", "1 when every model can serve.", lambda: core.is_ready)
    registry.gauge(
        "tinkex_engine_ready",
        "1 when an engine can serve.",
        lambda: {_engine(engine): float(engine.is_ready) for engine in core.engines},
    )
    registry.total(
        "tinkex_engine_deaths_total",
        "How often an engine died.",
        lambda: {_engine(engine): engine.deaths for engine in core.engines},
    )
    registry.total(
        "tinkex_engine_busy_seconds_total",
        "How long an engine has had something to do.",
        lambda: {_engine(engine): engine.busy_seconds() for engine in core.engines},
    )
    registry.gauge(
        "tinkex_engine_memory_bytes",
        "What is in an engine's memory, as it last said.",
        lambda: _memory(core),
    )
    registry.gauge(
        "tinkex_samples_waiting",
        "Samples queued for a model's engines.",
        lambda: _waiting(core),
    )
    registry.gauge(
        "tinkex_sequences_in_flight",
        "Sequences being sampled by an engine.",
        lambda: {_engine(each): core.sampling.lanes.sequences(each) for each in core.engines},
    )
    registry.gauge(
        "tinkex_queue_oldest_seconds",
        "How long the work that waits longest has waited.",
        core.now.oldest_wait_s,
    )
    registry.total(
        "tinkex_steps_total", "Optimizer steps since the start.", lambda: core.recorder.steps
    )
    registry.total(
        "tinkex_operations_failed_total",
        "Training operations that ended in an error since the start.",
        lambda: core.recorder.failures,
    )
    registry.gauge(
        "tinkex_advice",
        "What the dashboard gives advice about, by kind.",
        lambda: _advice(core),
    )
    registry.gauge(
        "tinkex_event_streams",
        "Open event streams of dashboards.",
        lambda: core.events.watchers.total(),
    )
    registry.gauge(
        "tinkex_engine_memory_plan_bytes",
        "What an engine's memory is for.",
        lambda: {label: size for engine in core.engines for label, size in _plan(engine)},
    )
    registry.gauge(
        "tinkex_operations_in_flight",
        "Training operations with an engine.",
        lambda: {_engine(engine): core.scheduler.in_flight(engine) for engine in core.engines},
    )
    registry.gauge(
        "tinkex_operations_pending",
        "Training operations accepted and not finished.",
        lambda: sum(run.log.pending_count() for run in core.runs),
    )
    registry.total(
        "tinkex_replays_total",
        "Operations repeated after an engine or the server was lost.",
        lambda: core.carrier.replays,
    )
    registry.total(
        "tinkex_replay_differences_total",
        "Repeated operations that came out differently from what their client was told.",
        lambda: core.carrier.replay_differences,
    )
    registry.total(
        "tinkex_snapshots_damaged_total",
        "Snapshots found damaged when a run was to be rebuilt from them.",
        lambda: core.snapshots.damaged,
    )
    registry.gauge(
        "tinkex_sampler_gap_nats",
        "The largest mean difference of a live run's trainer from its sampler, same weights.",
        lambda: max((run.gaps.gap.mean for run in core.runs if run.gaps.gap), default=0.0),
    )
    registry.gauge(
        "tinkex_runs_broken",
        "Live runs that cannot be rebuilt.",
        lambda: sum(run.broken is not None for run in core.runs),
    )
    registry.gauge(
        "tinkex_payload_bytes",
        "Bodies of operations kept on disk, those kept in case a snapshot is damaged included.",
        lambda: sum(run.log.retained_bytes + run.spare_bytes for run in core.runs),
    )
    registry.gauge(
        "tinkex_snapshot_bytes",
        "Bytes of all snapshots.",
        lambda: snapshot_bytes,
    )
    registry.total(
        "tinkex_integrity_checks_total",
        "Rounds in which the disk was compared with the database.",
        lambda: core.integrity.checks,
    )
    registry.gauge(
        "tinkex_integrity_problems",
        "What the last round found missing or damaged.",
        lambda: core.integrity.problems,
    )
    registry.gauge(
        "tinkex_disk_free_bytes",
        "What the disk of the home has left.",
        lambda: free_bytes(core.home.root),
    )
    registry.gauge("tinkex_runs_live", "Live training runs.", lambda: len(list(core.runs)))
    registry.gauge("tinkex_samples_in_flight", "Samples not finished.", core.sampling.in_flight)
    registry.total(
        "tinkex_used_total",
        "Tokens trained, prefilled and sampled since the start.",
        lambda: {(("measure", name),): amount for name, amount in core.meter.totals.items()},
    )
    registry.gauge("tinkex_checkpoints", "Checkpoints kept.", lambda: count)
    registry.gauge("tinkex_checkpoint_bytes", "Bytes of all checkpoints.", lambda: size)
    return registry


def _plan(engine: Engine) -> Iterator[tuple[Labels, float]]:
    for part, size in () if engine.facts is None else engine.facts.memory_plan.items():
        yield (*_engine(engine), ("part", part)), float(size)


def _engine(engine: Engine) -> Labels:
    return (("model", engine.model), ("engine", engine.name))


def _memory(core: Core) -> dict[Labels, float]:
    return {
        (*_engine(engine), ("part", part["name"])): part["bytes"]
        for engine in core.engines
        for part in core.now.memory(engine)["parts"]
    }


def _waiting(core: Core) -> dict[Labels, float]:
    found = {pool.spec.name: 0.0 for pool in core.engines.pools}
    for load in core.sampling.loads():
        found[load.model] += load.waiting
    return {(("model", model),): count for model, count in found.items()}


def _advice(core: Core) -> dict[Labels, float]:
    counts = Counter(each["kind"] for each in core.now.advice(Viewer("", operator=True)))
    return {(("kind", kind),): counts[kind] for kind in get_args(Kind)}
