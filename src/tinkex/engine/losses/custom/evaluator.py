"""Evaluates custom losses in other processes: jobs in, futures out, in fair turns.

The jobs of a call run one after the other, in order, so that its allowance of work does not depend
on chance. An owner has at most `PER_OWNER` of the `AT_ONCE` places. A loss keeps its process until
others need the place.
"""

from __future__ import annotations

import atexit
import functools
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.frames import Closed
from tinkex.engine.losses.custom.graph import Graph
from tinkex.engine.losses.custom.patience import Patience
from tinkex.engine.losses.custom.processes import LossProcess, Nursery
from tinkex.engine.losses.custom.replies import Job, Reply
from tinkex.engine.messages import CustomLoss

AT_ONCE = 8
PER_OWNER = 2
KEPT = 8
"""Processes that are kept for their loss's next call."""


@dataclass(slots=True)
class Account:
    """One call of a loss: its allowance, what it has used, and whether it is running."""

    loss: CustomLoss
    graph: Graph
    limit: int
    spent: int = 0
    busy: bool = False


@dataclass(slots=True)
class _Task:
    account: Account
    places: Sequence[int]
    data: Sequence[Mapping[str, NDArray[np.generic]]]
    slopes: bool
    future: Future[Reply] = field(default_factory=Future)

    @property
    def job(self) -> Job:
        return Job(self.places, self.data, self.slopes, self.account.limit, self.account.spent)


class Evaluator:
    """Any thread may submit."""

    def __init__(self) -> None:
        self.patience = Patience()
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._nursery: Nursery | None = None
        self._waiting: list[_Task] = []
        self._running: Counter[str] = Counter()
        self._idle: OrderedDict[tuple[str, bytes], LossProcess] = OrderedDict()

    def submit(
        self,
        account: Account,
        places: Sequence[int],
        data: Sequence[Mapping[str, NDArray[np.generic]]],
        slopes: bool,
    ) -> Future[Reply]:
        """A future of the answer about some datums of a call."""
        task = _Task(account, places, data, slopes)
        with self._lock:
            self._waiting.append(task)
            self._start_what_may_run()
        return task.future

    def get_ready(self) -> None:
        """Start what evaluating needs, in the background: a loss was uploaded."""
        threading.Thread(target=self._living_nursery, daemon=True).start()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = list(self._idle.values()), OrderedDict()
        for process in idle:
            process.close()
        with self._starting:
            if self._nursery is not None:
                self._nursery.close()
                self._nursery = None

    def _start_what_may_run(self) -> None:
        for task in list(self._waiting):
            owner = task.account.loss.owner
            if self._running.total() >= AT_ONCE:
                return
            if not task.account.busy and self._running[owner] < PER_OWNER:
                self._waiting.remove(task)
                self._running[owner] += 1
                task.account.busy = True
                self._start(task)

    def _start(self, task: _Task) -> None:
        threading.Thread(target=self._run, args=(task,), daemon=True).start()

    def _run(self, task: _Task) -> None:
        try:
            reply = self._answer(task)
        except Exception as error:
            self._over(task)
            task.future.set_exception(error)
        else:
            task.account.spent = reply.spent
            self._over(task)
            task.future.set_result(reply)

    def _over(self, task: _Task) -> None:
        with self._lock:
            task.account.busy = False
            self._running[task.account.loss.owner] -= 1
            self._start_what_may_run()

    def _answer(self, task: _Task) -> Reply:
        process = self._take(task.account)
        reply = process.run(task.job)
        if process.alive:
            self._put_back(task.account.loss, process)
        else:
            process.close()
        return reply

    def _take(self, account: Account) -> LossProcess:
        with self._lock:
            process = self._idle.pop(_key(account.loss), None)
        if process is not None:
            return process
        try:
            return LossProcess(self._living_nursery(), account.loss, account.graph)
        except (Closed, OSError):
            # The nursery was ended; the next one is as good.
            return LossProcess(self._living_nursery(renew=True), account.loss, account.graph)

    def _put_back(self, loss: CustomLoss, process: LossProcess) -> None:
        with self._lock:
            superfluous = [self._idle.pop(_key(loss), None)]
            self._idle[_key(loss)] = process
            if len(self._idle) > KEPT:
                superfluous.append(self._idle.popitem(last=False)[1])
        for old in superfluous:
            if old is not None:
                old.close()

    def _living_nursery(self, renew: bool = False) -> Nursery:
        with self._starting:
            if renew and self._nursery is not None:
                self._nursery.close()
                self._nursery = None
            if self._nursery is None:
                self._nursery = Nursery()
            return self._nursery


def _key(loss: CustomLoss) -> tuple[str, bytes]:
    return loss.owner, loss.digest


@functools.cache
def evaluator() -> Evaluator:
    """This process's evaluator: starting its first process takes seconds."""
    made = Evaluator()
    atexit.register(made.close)
    return made
