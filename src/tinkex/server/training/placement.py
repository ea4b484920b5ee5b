"""Placement: which engine of its model's pool a run goes to, and when it moves to another.

A run that is not resident goes where there is room, then where the fewest runs are busy. It stays
while it is in that engine's memory. It is moved, by a save and a load, when its engine is drained,
or when another engine has at least two busy runs less: then one move helps both, and nothing would
move the run back. Runs of an engine that died continue on any other at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeAlias

from tinkex.server.clock import Clock
from tinkex.server.engines.engine import Engine
from tinkex.server.engines.pool import Pool
from tinkex.server.operations.run import Run
from tinkex.server.settings import Settings
from tinkex.server.training.admission import Room

Crews: TypeAlias = dict[str, list[Run]]
"""The runs of a pool by the name of the engine they are on, or will be loaded into."""

BUSY_S = 10.0
"""A run that got a request this recently counts as busy: its client thinks, or samples."""
_GAIN = 2
"""Busy runs by which two engines must differ before one is moved."""


class Placement:
    """Chooses engines; other modules load and drop runs."""

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        self._places = settings.scheduling.resident_runs
        self._stay_s = settings.timings.run_move_s
        self._waits_for: dict[str, dict[str, str]] = defaultdict(dict)

    def crews(self, pool: Pool, runs: Iterable[Run]) -> Crews:
        """The runs of every engine. An idle run that is not resident has none."""
        crews: Crews = {engine.name: [] for engine in pool}
        if len(pool) == 1 and pool.takes_work:
            crews[next(iter(crews))].extend(runs)
            return crews
        self._seat(pool, runs, crews)
        for engine in pool:
            if engine.draining is not None:
                self._send_away(crews[engine.name], engine.draining)
        return crews

    def balance(self, pool: Pool, runs: list[Run]) -> None:
        """Ask one run to leave the busiest engine if the least busy one has much less to do."""
        known = {run.model_id for run in runs}
        waits = self._waits_for[pool.spec.name]
        self._waits_for[pool.spec.name] = {run: waits[run] for run in waits.keys() & known}
        engines = pool.open()
        if len(engines) < 2 or any(run.is_leaving for run in runs):
            return
        crews, now = self.crews(pool, runs), self._clock.monotonic()
        busy = {engine.name: _busy(crews[engine.name], now) for engine in engines}
        source = max(engines, key=lambda engine: len(busy[engine.name]))
        target = min(engines, key=lambda engine: len(busy[engine.name]))
        if len(busy[source.name]) - len(busy[target.name]) < _GAIN:
            return
        movable = [run for run in busy[source.name] if self._may_move(run, source, now)]
        movable = [run for run in movable if self._has_room(target, crews[target.name], run)]
        if movable:
            chosen = min(movable, key=lambda run: (run.settled_at, run.model_id))
            chosen.ask_to_leave(f"moving from engine {source.name} to one with less to do")

    def _seat(self, pool: Pool, runs: Iterable[Run], crews: Crews) -> None:
        # Looked up once for all runs: this happens for every request of a run that is not resident.
        homes = {engine.residence: crews[engine.name] for engine in pool if engine.is_ready}
        afloat = []
        for run in runs:
            crew = None if (place := run.place) is None else homes.get(place)
            if crew is not None:
                crew.append(run)
            elif not run.active and (run.refusal is not None or run.log.unfinished()):
                afloat.append(run)
        if not afloat:
            return
        now = self._clock.monotonic()
        busy = {name: len(_busy(crew, now)) for name, crew in crews.items()}
        for run in sorted(afloat, key=lambda run: run.used_at):
            engine = self._choose(pool, crews, busy, run)
            if engine is not None:
                crews[engine.name].append(run)
                busy[engine.name] += 1

    def _choose(self, pool: Pool, crews: Crews, busy: dict[str, int], run: Run) -> Engine | None:
        """The engine for a run that is not resident. A run that waits for room keeps its choice, so
        that not every engine is asked to make room for it."""
        engines = pool.open()
        roomy = [each for each in engines if self._has_room(each, crews[each.name], run)]
        waits = self._waits_for[pool.spec.name]
        if not roomy and (waited := pool.find(waits.get(run.model_id, ""))) in engines:
            return waited

        def burden(engine: Engine) -> tuple[int, int, int]:
            return busy[engine.name], len(crews[engine.name]), engine.under_way

        chosen = min(roomy or engines, key=burden, default=None)
        if roomy or chosen is None:
            waits.pop(run.model_id, None)
        else:
            waits[run.model_id] = chosen.name
        return chosen

    def _has_room(self, engine: Engine, crew: list[Run], run: Run) -> bool:
        room = Room.of(self._places, engine.facts)
        if not crew or len(crew) >= room.runs or room.total_bytes == math.inf:
            return len(crew) < max(1, room.runs)
        return sum(map(room.size, crew)) + room.size(run) <= room.total_bytes

    def _send_away(self, crew: list[Run], why: str) -> None:
        now = self._clock.monotonic()
        for run in crew:
            if not run.is_leaving and run.stays_until <= now:
                run.ask_to_leave(why)

    def _may_move(self, run: Run, source: Engine, now: float) -> bool:
        settled = run.residence == source.residence and now - run.settled_at >= self._stay_s
        return settled and run.stays_until <= now and run.refusal is None


def _busy(crew: list[Run], now: float) -> list[Run]:
    return [run for run in crew if now - run.used_at < BUSY_S or run.log.unfinished()]
