"""A server's present state for Prometheus: queues, engines, disk, checkpoints, advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeAlias, get_args

from prometheus_client import Metric

from tinkex.server.core import Core
from tinkex.server.engines.engine import Engine
from tinkex.server.recording.advice import Kind
from tinkex.server.storage.database import checkpoints, snapshots
from tinkex.server.storage.disk_watch import free_bytes
from tinkex.server.storage.objects.remote import RemoteObjects
from tinkex.server.views.viewers import Viewer

Labels: TypeAlias = tuple[tuple[str, str], ...]
Value: TypeAlias = float | Mapping[Labels, float]


async def state(core: Core) -> list[Metric]:
    """The server's present state."""
    count, size = await core.store.query(checkpoints.total)
    snapshot_bytes = await core.store.query(snapshots.size_bytes)
    return [
        _gauge("tinkex_ready", "1 when every model can serve.", core.is_ready),
        _gauge(
            "tinkex_engine_ready",
            "1 when an engine can serve.",
            {_engine(engine): float(engine.is_ready) for engine in core.engines},
        ),
        _total(
            "tinkex_engine_deaths_total",
            "How often an engine died.",
            {_engine(engine): engine.deaths for engine in core.engines},
        ),
        _total(
            "tinkex_engine_busy_seconds_total",
            "How long an engine has had something to do.",
            {_engine(engine): engine.busy_seconds() for engine in core.engines},
        ),
        _gauge(
            "tinkex_engine_memory_bytes",
            "What is in an engine's memory, as it last said.",
            _memory(core),
        ),
        _gauge(
            "tinkex_samples_waiting",
            "Samples queued for a model's engines.",
            _waiting(core),
        ),
        _gauge(
            "tinkex_sequences_in_flight",
            "Sequences being sampled by an engine.",
            {_engine(each): core.sampling.lanes.sequences(each) for each in core.engines},
        ),
        _gauge(
            "tinkex_queue_oldest_seconds",
            "How long the work that waits longest has waited.",
            core.now.oldest_wait_s(),
        ),
        _total("tinkex_steps_total", "Optimizer steps since the start.", core.recorder.steps),
        _total(
            "tinkex_operations_failed_total",
            "Training operations that ended in an error since the start.",
            core.recorder.failures,
        ),
        _gauge(
            "tinkex_advice",
            "What the dashboard gives advice about, by kind.",
            await _advice(core),
        ),
        _gauge(
            "tinkex_event_streams",
            "Open event streams of dashboards.",
            core.events.watchers.total(),
        ),
        _gauge(
            "tinkex_engine_memory_plan_bytes",
            "What an engine's memory is for.",
            {label: size for engine in core.engines for label, size in _plan(engine)},
        ),
        _gauge(
            "tinkex_operations_in_flight",
            "Training operations with an engine.",
            {_engine(engine): core.scheduler.in_flight(engine) for engine in core.engines},
        ),
        _gauge(
            "tinkex_operations_pending",
            "Training operations accepted and not finished.",
            sum(run.log.pending_count() for run in core.runs),
        ),
        _total(
            "tinkex_replays_total",
            "Operations repeated after an engine or the server was lost.",
            core.carrier.replays,
        ),
        _total(
            "tinkex_replay_differences_total",
            "Repeated operations that came out differently from what their client was told.",
            core.carrier.replay_differences,
        ),
        _total(
            "tinkex_snapshots_damaged_total",
            "Snapshots found damaged when a run was to be rebuilt from them.",
            core.snapshots.damaged,
        ),
        _gauge(
            "tinkex_sampler_gap_nats",
            "The largest mean difference of a live run's trainer from its sampler, same weights.",
            max((run.gaps.gap.mean for run in core.runs if run.gaps.gap), default=0.0),
        ),
        _gauge(
            "tinkex_runs_broken",
            "Live runs that cannot be rebuilt.",
            sum(run.broken is not None for run in core.runs),
        ),
        _gauge(
            "tinkex_payload_bytes",
            "Bodies of operations kept on disk, those kept in case a snapshot is damaged included.",
            sum(run.log.retained_bytes + run.spare_bytes for run in core.runs),
        ),
        _gauge(
            "tinkex_snapshot_bytes",
            "Bytes of all snapshots.",
            snapshot_bytes,
        ),
        _total(
            "tinkex_integrity_checks_total",
            "Rounds in which the disk was compared with the database.",
            core.integrity.checks,
        ),
        _gauge(
            "tinkex_integrity_problems",
            "What the last round found missing or damaged.",
            core.integrity.problems,
        ),
        _gauge(
            "tinkex_disk_free_bytes",
            "What the disk of the home has left.",
            free_bytes(core.home.root),
        ),
        _gauge("tinkex_runs_live", "Live training runs.", len(list(core.runs))),
        _gauge("tinkex_samples_in_flight", "Samples not finished.", core.sampling.in_flight()),
        _total(
            "tinkex_used_total",
            "Tokens trained, prefilled and sampled since the start.",
            {(("measure", name),): amount for name, amount in core.meter.totals.items()},
        ),
        _gauge("tinkex_checkpoints", "Checkpoints kept.", count),
        _gauge("tinkex_checkpoint_bytes", "Bytes of all checkpoints.", size),
        *_objects(core.storage.remote),
    ]


def _objects(remote: RemoteObjects | None) -> list[Metric]:
    """Of the object store, where there is one."""
    if remote is None:
        return []
    traffic = remote.objects.traffic
    return [
        _gauge(
            "tinkex_object_store_up",
            "1 when the object store answered the last request.",
            float(remote.trouble is None),
        ),
        _total(
            "tinkex_object_store_requests_total",
            "Requests to the object store by how they ended: answered, missing or failed.",
            {(("outcome", name),): count for name, count in traffic.requests.items()},
        ),
        _total(
            "tinkex_object_store_seconds_total",
            "How long those requests took, retries included.",
            traffic.seconds,
        ),
        _total(
            "tinkex_object_store_bytes_total",
            "Bytes sent to the object store and received from it.",
            {(("direction", name),): size for name, size in traffic.bytes.items()},
        ),
        _gauge(
            "tinkex_object_cache_bytes",
            "Copies on this disk of what is in the object store.",
            remote.cache.size_bytes,
        ),
    ]


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


async def _advice(core: Core) -> dict[Labels, float]:
    found = await core.now.advice(Viewer("", operator=True))
    counts = Counter(each["kind"] for each in found)
    return {(("kind", kind),): counts[kind] for kind in get_args(Kind)}


def _gauge(name: str, text: str, value: Value) -> Metric:
    return _family("gauge", name, name, text, value)


def _total(name: str, text: str, value: Value) -> Metric:
    """A number kept elsewhere that only grows."""
    return _family("counter", name.removesuffix("_total"), name, text, value)


def _family(kind: str, family: str, name: str, text: str, value: Value) -> Metric:
    made = Metric(family, text, kind)
    for labels, number in sorted((value if isinstance(value, Mapping) else {(): value}).items()):
        made.add_sample(name, dict(labels), number)
    return made
