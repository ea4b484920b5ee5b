"""Training batches under way: started from waiting calls, run in turns, their calls answered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass

from tinkex.engine.collectives import agree
from tinkex.engine.errors import EngineError
from tinkex.engine.messages import Done, Event, ForwardBackward
from tinkex.engine.process.failures import failure
from tinkex.engine.process.run_queues import RunQueues
from tinkex.engine.training.batch import Batch, Deferred
from tinkex.engine.training.trainer import Trainer

AT_ONCE = 4
"""Batches under way at one time, taking turns by unit: a micro-batch, or a stretch of one."""

MICRO_BATCHES = 8
"""Waiting forward passes join a batch up to this many micro-batches, so that a short one never
waits for several long ones."""


@dataclass(frozen=True, slots=True)
class _Underway:
    """A batch that is being run, and the commands that its outcomes answer."""

    batch: Batch
    commands: list[ForwardBackward]
    started: float


class Batches:
    """The batches of one worker. Another thread calls `wake` when a call need wait no more."""

    def __init__(
        self,
        trainer: Trainer,
        runs: RunQueues,
        emit: Callable[[Event], None],
        wake: Callable[[], None],
    ) -> None:
        self._trainer, self._runs, self._emit, self._wake = trainer, runs, emit, wake
        self._underway: deque[_Underway] = deque()
        self._ran_last: _Underway | None = None
        self._deferred: list[tuple[ForwardBackward, Deferred]] = []

    def __bool__(self) -> bool:
        """Whether any is under way."""
        return bool(self._underway)

    @property
    def any_ready(self) -> bool:
        """Whether a call that waited for its loss can be finished now."""
        return bool(self._deferred) and agree(any(d.ready for _, d in self._deferred))

    @property
    def runs(self) -> set[str]:
        """The runs that have a call in a batch."""
        return {command.run for underway in self._underway for command in underway.commands}

    def begin(self, busy: Container[str]) -> None:
        """Begin a batch of waiting calls, also while longer ones are under way: they take turns, so
        that a short call waits for a unit of a long one, not for all of it."""
        if len(self._underway) >= AT_ONCE or any(u.batch.remaining <= 1 for u in self._underway):
            return
        room = MICRO_BATCHES * self._trainer.limits.micro_batch_tokens
        heads = self._runs.take_forward(room, busy, self._trainer.residency.admit)
        again = self._take_ready()
        if again or heads:
            commands = [*(command for command, _ in again), *heads]
            batch = self._trainer.begin([*(deferred for _, deferred in again), *heads])
            self._line_up(_Underway(batch, commands, time.monotonic()))

    def _line_up(self, new: _Underway) -> None:
        """Queue it behind all that wait, but before the one that ran last: that one was at work
        when this one came."""
        behind = bool(self._underway) and self._underway[-1] is self._ran_last
        self._underway.insert(len(self._underway) - behind, new)

    def _take_ready(self) -> list[tuple[ForwardBackward, Deferred]]:
        """The calls that waited for their losses and can be finished now."""
        waiting, self._deferred = self._deferred, []
        ready: list[tuple[ForwardBackward, Deferred]] = []
        done = agree([deferred.ready for _, deferred in waiting]) if waiting else []
        for (command, deferred), is_done in zip(waiting, done, strict=True):
            if is_done:
                deferred.wait()
                self._runs.release(command.run)
                ready.append((command, deferred))
            else:
                self._deferred.append((command, deferred))
        return ready

    def _defer(self, command: ForwardBackward, deferred: Deferred) -> None:
        """Hold its run until the loss is there; all other runs go on."""
        self._runs.hold(command.run)
        self._deferred.append((command, deferred))
        deferred.notify(self._wake)

    def run_unit(self) -> None:
        """Run one unit of the batch whose turn it is; after its last one, send the answers."""
        underway = self._ran_last = self._next()
        batch = underway.batch
        next(batch, None)
        if batch.remaining:
            self._underway.append(underway)
            return
        next(batch, None)
        self._ran_last = None  # it would keep the calls, and their runs on the device
        seconds = time.monotonic() - underway.started
        for command, outcome in zip(underway.commands, batch.outcomes, strict=True):
            if isinstance(outcome, Deferred):
                self._defer(command, outcome)
            elif isinstance(outcome, EngineError):
                self._emit(failure(command.op, outcome))
            else:
                self._emit(Done(command.op, outcome, seconds))

    def _next(self) -> _Underway:
        """The batch whose turn it is. Memory is planned for one pass: while one is under way, only
        batches that need little memory get a turn."""
        if any(underway.batch.is_open for underway in self._underway):
            while not (self._underway[0].batch.is_open or self._underway[0].batch.is_light):
                self._underway.rotate(-1)
        return self._underway.popleft()
