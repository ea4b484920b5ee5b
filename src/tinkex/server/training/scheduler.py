"""Sends the next runnable operation of every run to its engine.

`pump` is called after every change and does everything that can be done at once:

1. It gives runs that are not resident an engine of their model's pool (see `placement`).
2. It picks runs in an order that is fair between tenants by tokens, across the whole pool.
3. It starts one errand for each, as long as the engine's window has room.

An errand restores a run whose state the engine does not have, takes a snapshot or evicts a run (see
`residency`), or carries one operation (see `carry`). Operations of one run are sent in order, and
several may be at the engine; their ends are recorded in order too. Operations that read or make
checkpoints wait for those before them.

When an engine dies, its operations are sent again, to another engine or to its next life. An
operation during which an engine died runs alone from then on. Nothing new is started before it, so
that others' traffic cannot keep it waiting.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tinkex.server.clock import Clock
from tinkex.server.engines.engine import Engine
from tinkex.server.engines.pool import Engines, Pool
from tinkex.server.fairness import Fairness
from tinkex.server.operations.log import Entry, Gap
from tinkex.server.operations.run import Run
from tinkex.server.operations.runs import Runs
from tinkex.server.settings import Settings
from tinkex.server.training.admission import Places, Room
from tinkex.server.training.carry import Carrier
from tinkex.server.training.placement import Crews, Placement
from tinkex.server.training.residency import Residency

logger = logging.getLogger(__name__)

_BYTES_PER_TOKEN = 16
_LONG_TOKENS = 4096
_LONG_AT_ONCE = 2
"""Long operations that one tenant may have at an engine, which runs only a few of them in turns."""
_FIRST_ONES = 2
"""An engine's window may grow to this multiple of `operations_in_flight` for tenants that have no
operation there yet."""

Choice: TypeAlias = tuple[float, Run, Entry | None]
"""Since when it waits, its run, and the operation; None for an errand without one: a restore, a
snapshot or an eviction."""


@dataclass(slots=True)
class _Window:
    """The operations at one engine, in total and by tenant. Tenants' turns are counted for the
    whole pool."""

    fairness: Fairness  # whose turn is next
    operations: int = 0  # at the engine
    tokens: int = 0  # of those
    alone: bool = False  # whether the one there must run alone
    of: Counter[str] = field(default_factory=Counter)  # operations by tenant
    long_of: Counter[str] = field(default_factory=Counter)  # the long ones by tenant

    @property
    def is_shared(self) -> bool:
        """Whether no tenant has more than one operation here."""
        return max(self.of.values(), default=0) <= 1

    def add(self, tenant: str, cost: int, sign: int) -> None:
        self.operations += sign
        self.tokens += sign * cost
        self.of[tenant] += sign
        self.long_of[tenant] += sign * (cost > _LONG_TOKENS)


class Scheduler:
    """The one place that decides what an engine trains next."""

    def __init__(
        self,
        runs: Runs,
        engines: Engines,
        carrier: Carrier,
        residency: Residency,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._runs = runs
        self._engines = engines
        self._carrier = carrier
        self._residency = residency
        self._clock = clock
        self._limits, self._class_of = settings.scheduling, settings.class_of
        self._turn_s, self._idle_s = settings.timings.run_turn_s, settings.timings.run_idle_s
        self._placement = Placement(clock, settings)
        self._windows = {
            engine.name: _Window(fairness)
            for pool, fairness in _turns(engines, settings)
            for engine in pool
        }
        self._crews: Crews = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._stopping = False
        for engine in engines:
            engine.listen(self.pump)

    def pump(self) -> None:
        """Start everything that can start now."""
        if self._stopping:
            return
        gaps: list[float] = []
        for pool in self._engines.pools:
            runs = self._served_by(pool)
            if pool.is_ready:
                self._crews |= self._placement.crews(pool, runs)
                self._pump(pool, gaps)
            elif pool.is_asleep and any(run.log.unfinished() for run in runs):
                pool.wake()
        self._arm(gaps)

    def attend(self, run: Run) -> None:
        """`pump` for a change of one run. If the run is resident, only its engine is looked at,
        however many others there are."""
        if self._stopping:
            return
        engine = self._engines.at(run.place)
        if engine is None or not engine.takes_work or run not in self._crews[engine.name]:
            self.pump()
            return
        gaps: list[float] = []
        crew = [each for each in self._crews[engine.name] if self._runs.find(each.model_id) is each]
        while self._start_one(engine, crew, gaps):
            pass
        self._arm([*gaps, self._timer_at])

    def balance(self) -> None:
        """Ask runs to leave an engine that has too many for another that has too few."""
        for pool in self._engines.pools:
            self._placement.balance(pool, self._served_by(pool))
        self.pump()

    def release_idle(self) -> None:
        """Ask runs to leave that have been idle for a while."""
        oldest = self._clock.monotonic() - self._idle_s
        for run in self._runs:
            if run.used_at < oldest and not run.log.unfinished():
                run.ask_to_leave()

    async def drain(self, seconds: float) -> None:
        """Start nothing new, and wait at most this long for what is under way."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def stop(self) -> None:
        """Cancel every errand; the log knows what is left to do."""
        await self.drain(0.0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def in_flight(self, engine: Engine) -> int:
        return self._windows[engine.name].operations

    def residents(self, engine: Engine) -> list[Run]:
        """The runs in an engine's memory, or on their way into it."""
        return [run for run in self._runs if run.place == engine.residence]

    def busy_runs(self, pool: Pool) -> int:
        """How many runs of a model are busy."""
        return sum(bool(run.log.unfinished()) for run in self._served_by(pool))

    # ---- choosing

    def _served_by(self, pool: Pool) -> list[Run]:
        return [run for run in self._runs if self._engines.find(run.row.base_model) is pool]

    def _pump(self, pool: Pool, gaps: list[float]) -> None:
        for engine in pool:
            if engine.is_ready:
                while self._start_one(engine, self._crews[engine.name], gaps):
                    pass

    def _start_one(self, engine: Engine, runs: list[Run], gaps: list[float]) -> bool:
        window = self._windows[engine.name]
        if window.alone or window.operations >= _FIRST_ONES * self._limits.operations_in_flight:
            return False
        choice = self._choose(engine, runs, window, gaps)
        if choice is None:
            return False
        self._start(choice[1], choice[2], engine, window)
        return True

    def _choose(
        self, engine: Engine, runs: list[Run], window: _Window, gaps: list[float]
    ) -> Choice | None:
        """What to start now: evictions first, then what must run alone, then tenants' turns."""
        now = self._clock.monotonic()
        arriving = self._arriving(runs, engine, now, gaps)
        found = [self._runnable(run, engine, now, gaps) for run in runs]
        ready = [*arriving, *(choice for choice in found if choice is not None)]
        if leaving := next((choice for choice in ready if choice[1].is_leaving), None):
            return leaving
        if alone := next((choice for choice in ready if choice[2] and choice[2].deaths), None):
            return None if window.operations else alone
        highest = min((self._class_of(run.tenant) for run in runs), default=0)
        fitting = [choice for choice in ready if self._fits(choice, window, highest)]
        return _fairest(fitting, window, engine.name)

    def _arriving(
        self, runs: list[Run], engine: Engine, now: float, gaps: list[float]
    ) -> list[Choice]:
        """Restores for runs that have work and are not resident, as far as there is room."""
        room = Room.of(self._limits.resident_runs, engine.facts)
        places = Places(runs, engine.residence, room, self._turn_s)
        waiting = [run for run in runs if self._wants_place(run, engine, now, gaps)]
        if waiting:
            chance = places.make_room(waiting, now)
            gaps.extend([] if chance is None else [chance])
        fitting = [run for run in waiting if places.fits(run)]
        for run in waiting if not fitting else ():
            run.restore(f"{places.taken} runs are in the engine's memory; waiting for room")
        return [(run.used_at, run, None) for run in fitting]

    def _wants_place(self, run: Run, engine: Engine, now: float, gaps: list[float]) -> bool:
        if run.place == engine.residence or run.refusal is not None or run.active:
            return False
        upcoming = run.log.resume(now)
        if isinstance(upcoming, Gap):
            gaps.append(upcoming.deadline)
        return isinstance(upcoming, Entry)

    def _runnable(self, run: Run, engine: Engine, now: float, gaps: list[float]) -> Choice | None:
        """What a resident run would do now; or, for a run that cannot go on, giving it up."""
        if run.is_sending:
            return None
        own = (run.used_at, run, None)
        if run.refusal is not None:
            # A stopped run is taken from the engine when it ends.
            gone = run.stopped or run.residence != engine.residence
            over = not run.log.unfinished() and gone
            return None if over or run.active else own
        if run.residence != engine.residence:
            return None
        if run.is_leaving:
            return None if run.active else own
        if run.active >= self._limits.operations_per_run:
            return None
        upcoming = run.log.next(now)
        if isinstance(upcoming, Gap):
            gaps.append(upcoming.deadline)
        if run.snapshot_due:
            return own
        if isinstance(upcoming, Entry) and run.log.may_begin(upcoming):
            return upcoming.arrived, run, upcoming
        return None

    def _fits(self, choice: Choice, window: _Window, highest: int) -> bool:
        """Whether there is room. A tenant's first operation at an engine always fits, however much
        others have there, unless a higher class has work."""
        _, run, entry = choice
        first = not window.of[run.tenant] and self._class_of(run.tenant) <= highest
        full = window.operations >= self._limits.operations_in_flight
        if full and (window.is_shared or not first):
            return False
        if first or entry is None or not window.operations:
            return True
        cost = _cost(entry)
        if cost > _LONG_TOKENS and window.long_of[run.tenant] >= _LONG_AT_ONCE:
            return False
        return window.tokens + cost <= self._limits.tokens_in_flight

    def _start(self, run: Run, entry: Entry | None, engine: Engine, window: _Window) -> None:
        errand = run.begin_errand()
        sent = functools.partial(self._sent, run, errand)
        if entry is not None:
            run.log.begin(entry, self._clock.monotonic())
            window.fairness.charge(run.tenant, _cost(entry))
            window.alone = entry.deaths > 0
            before = run.errands_before(entry)
            carry = self._carrier.carry(run, entry, engine, before, sent)
            run.carried_by(self._spawn(run, errand, window, _cost(entry), carry), entry)
        elif run.refusal is not None:
            self._spawn(run, errand, window, 0, self._give_up(run))
        elif run.residence != engine.residence:
            run.take_place(engine.residence)
            window.fairness.charge(run.tenant, 0)
            self._spawn(run, errand, window, 0, self._residency.restore(run, engine))
        elif run.is_leaving:
            self._spawn(run, errand, window, 0, self._residency.evict(run, engine))
        else:
            self._spawn(run, errand, window, 0, self._residency.snapshot(run, engine, sent))

    async def _give_up(self, run: Run) -> None:
        """Fail what waits for a run that cannot go on, and free its place."""
        await self._carrier.fail_all(run)
        await self._residency.drop(run)

    def _spawn(
        self,
        run: Run,
        errand: int,
        window: _Window,
        cost: int,
        work: Coroutine[Any, Any, None],
    ) -> asyncio.Task[None]:
        window.add(run.tenant, cost, 1)

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            window.add(run.tenant, cost, -1)
            if window.operations == 0:
                window.alone = False
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("an errand of %s broke", run.model_id, exc_info=error)
                run.break_down(f"the server failed on it ({type(error).__name__})")
            run.end_errand(errand)
            self.attend(run)

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(over)
        return task

    def _arm(self, gaps: list[float]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = min(gaps, default=math.inf)
        if self._timer_at < math.inf:
            delay = max(0.0, self._timer_at - self._clock.monotonic()) + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay, self.pump)

    def _sent(self, run: Run, errand: int) -> None:
        run.sent(errand)
        self.attend(run)


def _turns(engines: Engines, settings: Settings) -> list[tuple[Pool, Fairness]]:
    return [(pool, Fairness(settings.weight_of, settings.class_of)) for pool in engines.pools]


def _fairest(ready: list[Choice], window: _Window, at: str) -> Choice | None:
    """The longest waiting choice of the tenant whose turn it is."""
    by_tenant: dict[str, list[Choice]] = {}
    for choice in ready:
        by_tenant.setdefault(choice[1].tenant, []).append(choice)
    for tenant in window.fairness.waiting(by_tenant, at):
        return min(by_tenant[tenant], key=lambda choice: choice[0])
    return None


def _cost(entry: Entry) -> int:
    """An operation's tokens, estimated from its size before it is decoded."""
    return entry.payload_bytes // _BYTES_PER_TOKEN
