"""Carries one operation: prepare, send, wait, conclude, commit, wake the waiting polls.

An operation's end is written after that of the one before it. Only a save is not waited for,
because it changes nothing of the run. What was lost with the engine stays in the log, to be sent
again once the run is restored; after too many losses it fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tinkex.engine.messages import Result
from tinkex.server.engines.engine import CommandFailed, Engine, EngineLost
from tinkex.server.operations import kinds, save
from tinkex.server.operations.base import Around, Conclusion, Prepared
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.promises import Outcome
from tinkex.server.protocol.outcomes import Category, failure, told
from tinkex.server.refusals import Refusal
from tinkex.server.settings import Scheduling
from tinkex.server.training.payloads import Bodies
from tinkex.server.training.results import Endings
from tinkex.server.training.snapshots import Snapshots

logger = logging.getLogger(__name__)


class Carrier:
    """Carries operations to their ends. `replays` counts those repeated after a loss,
    `replay_differences` those that then gave another result."""

    def __init__(
        self,
        around: Around,
        bodies: Bodies,
        endings: Endings,
        snapshots: Snapshots,
        limits: Scheduling,
    ) -> None:
        self.replays = 0
        self.replay_differences = 0
        self._around = around
        self._bodies = bodies
        self._endings = endings
        self._snapshots = snapshots
        self._limits = limits

    async def carry(
        self,
        run: Run,
        entry: Entry,
        engine: Engine,
        before: list[asyncio.Task[None]],
        sent: Callable[[], None],
    ) -> None:
        """See one operation through, after those `before` it; `sent` is called when the engine may
        get the run's next."""
        prepared: Prepared | None = None
        told: Outcome | None = None
        residence, life = run.residence, run.life
        try:
            if not entry.kind.pipelined:
                await _over(before)
            body = await self._bodies.of(entry)
            run.log.repeat_along(entry, await self._bodies.routes_of(entry))
            prepared = await kinds.prepare(self._around, run, entry, body)
            answers = [await engine.send(command, life) for command in prepared.commands]
            sent()
            if prepared.early is not None:
                await answers[0]
                told = await prepared.early()
                self._endings.tell(run, entry, told)
            result = await _last(answers)
            conclusion = await prepared.conclude(result)
        except EngineLost as lost:
            _abandon(prepared)
            run.leave()
            residence, deaths = None, run.log.lose(entry)
            if deaths < self._limits.deaths_before_poison:
                return
            save.give_up(self._around, entry)
            conclusion = Conclusion(
                failure("server", f"the engine died {deaths} times while it ran this: {lost}")
            )
        except asyncio.CancelledError:
            _abandon(prepared)
            raise
        except Exception as error:
            _abandon(prepared)
            conclusion = _failed(entry, error)
            if prepared is not None and told is not None:
                prepared.kept_back(error)
                conclusion = Conclusion(told)
        await _over(before)
        if run.residence != residence:
            # An earlier one was lost with the engine, so this result is not final either.
            _abandon(prepared)
            return
        await self._conclude(run, entry, prepared, conclusion)

    async def fail_all(self, run: Run) -> None:
        """Fail everything that waits on a run that was stopped, cannot be rebuilt or never was
        made."""
        category: Category = "user" if run.stopped or run.log.never_made else "server"
        outcome = failure(category, f"this run cannot continue: {run.refusal}")
        for entry in list(run.log.entries.values()):
            if entry.state in ("waiting", "running") and not entry.replay:
                save.give_up(self._around, entry)
                await self._endings.write(run, entry, None, Conclusion(outcome))
                run.log.finish(entry, failed=True)

    async def _conclude(
        self, run: Run, entry: Entry, prepared: Prepared | None, conclusion: Conclusion
    ) -> None:
        if entry.replay:
            await self._check_replay(run, entry, conclusion)
            return
        run.restore(None)
        failed = await self._endings.write(run, entry, prepared, conclusion)
        run.ended(entry, failed)
        if self._snapshots.is_due(run):
            run.owe_snapshot()

    async def _check_replay(self, run: Run, entry: Entry, conclusion: Conclusion) -> None:
        """A repeated operation must give the same result. If not, log an error and go on."""
        if conclusion.outcome.failed:
            why = f"repeating {entry.request_id} failed: {told(conclusion.outcome)}"
            run.break_down(why)
            logger.error("%s cannot be restored: %s", run.model_id, why)
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


async def _over(errands: list[asyncio.Task[None]]) -> None:
    """Wait until errands have ended, however they did."""
    under_way = [errand for errand in errands if not errand.done()]
    if under_way:
        await asyncio.wait(under_way)


async def _last(answers: list[asyncio.Future[Result]]) -> Result:
    """The engine's last answer, once it has given all of them."""
    if len(answers) > 1:
        await asyncio.wait(answers)
    return [await answer for answer in answers][-1]


def _abandon(prepared: Prepared | None) -> None:
    if prepared is not None:
        prepared.abandon()


def _failed(entry: Entry, error: Exception) -> Conclusion:
    """Whose failure it is, and what the client is told."""
    if isinstance(error, CommandFailed):
        category: Category = "user" if error.kind == "user" else "server"
        return Conclusion(failure(category, error.message))
    if isinstance(error, Refusal):
        return Conclusion(failure("user", error.detail))
    if isinstance(error, OSError):
        logger.error("the disk failed %s: %s", entry.request_id, error)
        why = error.strerror or "see the server's log"
        return Conclusion(failure("server", f"the disk did not take it: {why}"))
    logger.error("operation %s broke", entry.request_id, exc_info=error)
    name = type(error).__name__
    return Conclusion(failure("server", f"the server failed on this: {name}"))
