"""Sends the next runnable operation of every run to its engine, and sees each one to its end.

`pump` is called after every change and does what can be done at once: it picks runs in an order
that is fair between tenants by tokens and starts one errand each, as long as the engine's window
has room. An errand restores a run whose state the engine does not have, takes a snapshot or evicts
a run (see `residence`), or carries one operation: prepare, send, wait, conclude, commit, wake who
waits. Operations of
one run are sent in order and several may be with the engine; their ends are written down in
order too. What reads or makes checkpoints waits for the operations before it.

When the engine dies, what it held is sent again in its next life. An operation that was with the
engine when it died runs alone from then on; if the engine dies of it too often, it fails.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from tinkex.engine.messages import Result
from tinkex.server.bodies import Bodies
from tinkex.server.clock import Clock
from tinkex.server.endings import Endings
from tinkex.server.engines import Engines
from tinkex.server.fairness import Fairness
from tinkex.server.kinds import Kinds
from tinkex.server.kinds.prepared import Conclusion, Prepared
from tinkex.server.log import Entry, Gap
from tinkex.server.outcomes import failure
from tinkex.server.refusals import Refusal
from tinkex.server.residence import Residence
from tinkex.server.runs import Run, Runs
from tinkex.server.settings import Settings
from tinkex.server.snapshots import Snapshots
from tinkex.server.supervisor import CommandFailed, Engine, EngineLost

logger = logging.getLogger(__name__)

_BYTES_PER_TOKEN = 16
_PIPELINED = frozenset({"forward", "forward_backward", "optim_step"})


@dataclass(slots=True)
class _Window:
    """What is with one engine now."""

    operations: int = 0
    tokens: int = 0
    alone: bool = False
    fairness: Fairness = field(default_factory=Fairness)


class Scheduler:
    """The one place that decides what an engine trains next. `replays` counts operations repeated
    after a loss, `replay_differences` those that then came out differently."""

    def __init__(
        self,
        runs: Runs,
        engines: Engines,
        kinds: Kinds,
        bodies: Bodies,
        endings: Endings,
        snapshots: Snapshots,
        residence: Residence,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self.replays = 0
        self.replay_differences = 0
        self._runs = runs
        self._engines = engines
        self._kinds = kinds
        self._bodies = bodies
        self._endings = endings
        self._snapshots = snapshots
        self._residence = residence
        self._clock = clock
        self._limits = settings.scheduling
        self._windows = {engine.spec.name: _Window() for engine in engines}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._turns = itertools.count(1)
        self._stopping = False
        for engine in engines:
            engine.listen(self.pump)

    def pump(self) -> None:
        """Start everything that can start now."""
        if self._stopping:
            return
        gaps: list[float] = []
        for engine in self._engines:
            if engine.is_ready:
                while self._start_one(engine, gaps):
                    pass
            elif engine.is_asleep and self._has_work(engine):
                engine.wake()
        self._arm(gaps)

    async def drain(self, seconds: float) -> None:
        """Start nothing new and give what is under way so long to end."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def stop(self) -> None:
        """End every errand where it stands; the log knows what is left to do."""
        await self.drain(0.0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def in_flight(self, engine: Engine) -> int:
        return self._windows[engine.spec.name].operations

    # ---- choosing

    def _has_work(self, engine: Engine) -> bool:
        return any(
            run.log.unfinished() and self._engines.find(run.row.base_model) is engine
            for run in self._runs
        )

    def _start_one(self, engine: Engine, gaps: list[float]) -> bool:
        window = self._windows[engine.spec.name]
        if window.alone or window.operations >= self._limits.operations_in_flight:
            return False
        ready: dict[str, list[tuple[float, Run, Entry | None]]] = {}
        for run in self._runs:
            if self._engines.find(run.row.base_model) is engine:
                choice = self._runnable(run, engine, window, gaps)
                if choice is not None:
                    ready.setdefault(run.tenant, []).append((choice[0], run, choice[1]))
        for tenant in window.fairness.waiting(ready):
            _, run, entry = min(ready[tenant], key=lambda candidate: candidate[0])
            self._start(run, entry, engine, window)
            return True
        return False

    def _runnable(
        self, run: Run, engine: Engine, window: _Window, gaps: list[float]
    ) -> tuple[float, Entry | None] | None:
        """(since when it waits, the operation or None for an errand of the run's own)."""
        if run.sending:
            return None
        if run.refusal is not None:
            return (run.used_at, None) if run.log.unfinished() and not run.active else None
        if run.active >= self._limits.operations_per_run:
            return None
        if run.generation != engine.generation:
            return self._restorable(run, engine)
        upcoming = run.log.next(self._clock.monotonic())
        if isinstance(upcoming, Gap):
            gaps.append(upcoming.deadline)
        if isinstance(upcoming, Entry):
            return self._fits(run, upcoming, window)
        idle = run.snapshot_due or (run.evict and not run.active)
        return (run.used_at, None) if idle else None

    def _restorable(self, run: Run, engine: Engine) -> tuple[float, Entry | None] | None:
        """A run that is nowhere comes back when something is asked of it and there is room."""
        if run.active or not run.log.unfinished():
            return None
        resident = [
            other
            for other in self._runs
            if other.generation == engine.generation
            and self._engines.find(other.row.base_model) is engine
        ]
        if len(resident) >= self._limits.resident_runs:
            idle = [other for other in resident if not other.log.unfinished()]
            if idle and not any(other.evict for other in idle):
                min(idle, key=lambda other: other.used_at).evict = True
                asyncio.get_running_loop().call_soon(self.pump)
            run.restoring = f"{len(resident)} runs are in the engine's memory; waiting for room"
            return None
        return run.used_at, None

    def _fits(self, run: Run, entry: Entry, window: _Window) -> tuple[float, Entry | None] | None:
        if entry.deaths and window.operations:
            return None
        cost = _cost(entry)
        if window.operations and window.tokens + cost > self._limits.tokens_in_flight:
            return None
        if run.snapshot_due:
            return entry.arrived, None
        return entry.arrived, entry

    def _start(self, run: Run, entry: Entry | None, engine: Engine, window: _Window) -> None:
        run.sending = turn = next(self._turns)
        if entry is not None:
            run.log.begin(entry)
            window.fairness.charge(run.tenant, _cost(entry))
            window.alone = entry.deaths > 0
            carry = self._carry(run, entry, engine, turn, run.latest)
            run.latest = self._spawn(run, turn, window, _cost(entry), carry)
        elif run.refusal is not None:
            self._spawn(run, turn, window, 0, self._break(run))
        elif run.generation != engine.generation:
            self._spawn(run, turn, window, 0, self._residence.restore(run, engine))
        elif run.snapshot_due:
            sent = functools.partial(self._sent, run, turn)
            self._spawn(run, turn, window, 0, self._residence.snapshot(run, engine, sent))
        else:
            self._spawn(run, turn, window, 0, self._residence.evict(run, engine))

    def _spawn(
        self,
        run: Run,
        turn: int,
        window: _Window,
        cost: int,
        errand: Coroutine[Any, Any, None],
    ) -> asyncio.Task[None]:
        run.active += 1
        window.operations += 1
        window.tokens += cost

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            run.active -= 1
            self._pass_turn(run, turn)
            window.operations -= 1
            window.tokens -= cost
            if window.operations == 0:
                window.alone = False
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("an errand of %s broke", run.model_id, exc_info=error)
                run.broken = f"the server failed on it ({type(error).__name__})"
            run.progressed()
            self.pump()

        task = asyncio.get_running_loop().create_task(errand)
        self._tasks.add(task)
        task.add_done_callback(over)
        return task

    def _arm(self, gaps: list[float]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if gaps:
            delay = max(0.0, min(gaps) - self._clock.monotonic()) + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay, self.pump)

    # ---- errands

    async def _carry(
        self,
        run: Run,
        entry: Entry,
        engine: Engine,
        turn: int,
        before: asyncio.Task[None] | None,
    ) -> None:
        """See one operation through. Its end is written after that of the one `before` it."""
        prepared: Prepared | None = None
        life = run.generation
        try:
            if entry.kind not in _PIPELINED:
                await _over(before)
            body = await self._bodies.of(entry)
            prepared = await self._kinds.prepare(run, entry, body, engine.generation)
            result = await self._through_engine(run, prepared, engine, turn)
            conclusion = await prepared.conclude(result)
        except EngineLost:
            self._abandon(prepared)
            run.generation = 0
            entry.deaths += 1
            if entry.deaths < self._limits.deaths_before_poison:
                return
            life = run.generation
            conclusion = Conclusion(
                failure("server", f"the engine died {entry.deaths} times while it ran this")
            )
        except CommandFailed as failed:
            self._abandon(prepared)
            conclusion = _failed(failed)
        except Refusal as refusal:
            self._abandon(prepared)
            conclusion = Conclusion(failure("user", refusal.detail))
        except asyncio.CancelledError:
            self._abandon(prepared)
            raise
        except OSError as error:
            logger.error("the disk failed %s: %s", entry.request_id, error)
            self._abandon(prepared)
            conclusion = Conclusion(
                failure("server", f"the disk did not take it: {error.strerror}")
            )
        except Exception as error:
            logger.exception("operation %s broke", entry.request_id)
            self._abandon(prepared)
            kind = type(error).__name__
            conclusion = Conclusion(failure("server", f"the server failed on this: {kind}"))
        await _over(before)
        if run.generation != life:
            # One before it was lost with the engine; what rests on that one is not final either.
            self._abandon(prepared)
            return
        await self._conclude(run, entry, prepared, conclusion)

    async def _through_engine(
        self, run: Run, prepared: Prepared, engine: Engine, turn: int
    ) -> Result:
        answers = []
        for command in prepared.commands:
            if run.generation != engine.generation:
                # Its next life has begun meanwhile and does not have the run yet.
                raise EngineLost("the engine was restarted before this was sent")
            answers.append(await engine.send(command))
        self._sent(run, turn)
        if len(answers) > 1:
            await asyncio.wait(answers)
        return [await answer for answer in answers][-1]

    async def _conclude(
        self, run: Run, entry: Entry, prepared: Prepared | None, conclusion: Conclusion
    ) -> None:
        if entry.replay:
            await self._check_replay(run, entry, conclusion)
            return
        run.restoring = None
        failed = await self._endings.write(run, entry, prepared, conclusion)
        run.log.finish(entry, failed)
        if entry.kind == "optim_step" and not failed:
            run.steps_since_snapshot += 1
        if entry.kind in ("load_weights", "create_from") and not failed:
            run.snapshot_due = True
        run.snapshot_due = run.snapshot_due or self._snapshots.is_due(run)

    async def _check_replay(self, run: Run, entry: Entry, conclusion: Conclusion) -> None:
        """A repeated operation must come out as it did; if not, say so loudly and carry on."""
        if conclusion.outcome.failed:
            run.broken = f"repeating {entry.request_id} failed: {conclusion.outcome.body.decode()}"
            logger.error("%s cannot be restored: %s", run.model_id, run.broken)
            return
        run.log.finish(entry, failed=False)
        self.replays += 1
        if not await self._endings.matches(entry, conclusion.outcome):
            self.replay_differences += 1
            logger.error(
                "replay of %s gave another result than before: from here on this run's numbers "
                "are not those of the life it was restored from",
                entry.request_id,
            )

    async def _break(self, run: Run) -> None:
        """Fail everything that waits on a run that was stopped or cannot be rebuilt."""
        whose: Literal["user", "server"] = "user" if run.stopped else "server"
        outcome = failure(whose, f"this run cannot continue: {run.refusal}")
        for entry in list(run.log.entries.values()):
            if entry.state in ("waiting", "running") and not entry.replay:
                await self._endings.write(run, entry, None, Conclusion(outcome))
                run.log.finish(entry, failed=True)

    def _pass_turn(self, run: Run, turn: int) -> None:
        """What this errand sends is sent; an older errand that ends later changes nothing."""
        if run.sending == turn:
            run.sending = 0

    def _sent(self, run: Run, turn: int) -> None:
        self._pass_turn(run, turn)
        self.pump()

    def _abandon(self, prepared: Prepared | None) -> None:
        if prepared is not None:
            prepared.abandon()


async def _over(task: asyncio.Task[None] | None) -> None:
    """Wait until an errand has ended, however it did."""
    if task is not None and not task.done():
        await asyncio.wait([task])


def _cost(entry: Entry) -> int:
    """An operation's tokens, estimated from its size before it is decoded."""
    return entry.payload_bytes // _BYTES_PER_TOKEN


def _failed(failed: CommandFailed) -> Conclusion:
    return Conclusion(failure("user" if failed.kind == "user" else "server", failed.message))
