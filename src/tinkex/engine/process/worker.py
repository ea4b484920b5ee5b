"""One engine: takes commands, trains and samples in turns, emits events.

`run` is the loop; it works in any thread, and `child` runs it as a process. Commands of a run are
carried out in the order they came; the forward passes that wait at the head of several runs become
one packed batch, and batches of several micro-batches take turns; runs are made, loaded and brought
back in pieces between them. Saving writes in the background from a snapshot. A command that fails
is answered `Failed` and the engine goes on.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

from tinkex.engine.collectives import agree
from tinkex.engine.frames import Closed
from tinkex.engine.messages import (
    Cancel,
    CheckLoss,
    Command,
    CreateRun,
    Done,
    DropRun,
    DropWeights,
    Event,
    LoadRun,
    LoadWeights,
    OptimStep,
    Ping,
    Result,
    RunInfo,
    Sample,
    SaveRun,
    ServeRun,
    Stats,
    WeightsRef,
)
from tinkex.engine.pieces import Pieces
from tinkex.engine.process.batches import Batches
from tinkex.engine.process.device_clock import Stopwatch
from tinkex.engine.process.failures import failure, release_memory, short
from tinkex.engine.process.fetched_weights import FetchedWeights
from tinkex.engine.process.interleave import Interleave
from tinkex.engine.process.moves import Moves
from tinkex.engine.process.ranks import (
    COMPILE_MORE,
    GET_READY,
    MAKE_TURN,
    Follower,
    Leader,
)
from tinkex.engine.process.run_queues import RunCommand, RunQueues, SingleCommand
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.training.run import save
from tinkex.engine.training.trainer import Trainer

logger = logging.getLogger(__name__)

Emit: TypeAlias = Callable[[Event], None]

SOON_S = 0.2
"""After the last work, so long nothing is got ready in idle time."""

QUIET_S = 5.0
"""The same for what only few will ask for: a script that pauses between its calls waits for none
of it."""


class _Wake:
    """Put into the inbox to end a wait: something else than a command has happened."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A load whose weights were fetched, or why they were not."""

    command: LoadRun | LoadWeights
    error: Exception | None = None


class Worker:
    def __init__(
        self,
        trainer: Trainer,
        sampler: Sampler,
        policy: Interleave,
        stopwatch: Stopwatch,
        emit: Emit,
        fetched: FetchedWeights | None = None,
    ) -> None:
        self._fetched = fetched or FetchedWeights()
        self._trainer, self._sampler, self._policy = trainer, sampler, policy
        self._stopwatch = stopwatch
        self._emit = emit
        self.leader: Leader | None = None
        shard = trainer.decoder.config.shard
        self._leads = shard is None or shard.rank == 0
        self._inbox: queue.SimpleQueue[Command | _Wake | _Fetched | None] = queue.SimpleQueue()
        self._runs = RunQueues(self._is_away)
        self._moves = Moves(trainer.residency, self._runs, emit)
        self._moved = False
        self._batches = Batches(trainer, self._runs, emit, lambda: self._inbox.put(_Wake()))
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="engine-save")
        self._fetcher = ThreadPoolExecutor(4, thread_name_prefix="engine-fetch")
        self._prepared = False
        self._last_work = -math.inf
        self._stopping = False

    def submit(self, command: Command) -> None:
        """Queue a command. Any thread may."""
        self._inbox.put(command)

    def stop(self) -> None:
        """Let `run` return after the unit of work in progress. Any thread may."""
        self._inbox.put(None)

    def run(self) -> None:
        """Work until `stop`, idle time used to get ready. Saves under way are finished first."""
        while not self._stopping:
            if self.turn() or self._stopping or self._took_more(SOON_S) or self._get_ready():
                continue
            if self._took_more(QUIET_S) or self._compile_more():
                continue
            self._accept(self._inbox.get())
        self._writer.shutdown()
        self._fetcher.shutdown(cancel_futures=True)
        self._fetched.close()
        self._sampler.grammars.close()
        if self.leader is not None:
            self.leader.close()

    def follow(self, follower: Follower) -> None:
        """Do what the first rank does, until it ends."""
        with contextlib.suppress(Closed):
            while True:
                note = follower.hear()
                if note == MAKE_TURN:
                    self._make_turn()
                elif note == GET_READY:
                    self._get_ready()
                elif note == COMPILE_MORE:
                    self._compile_more()
                else:
                    self._accept(note)

    def _tell(self, note: object) -> None:
        if self.leader is not None:
            self.leader.tell(note)

    def _took_more(self, within: float) -> bool:
        """Whether a command came so soon after the last work: a client that awaits each result is
        back within milliseconds, and should not find the engine getting ready for others."""
        pause = self._last_work + within - time.monotonic()
        try:
            self._accept(self._inbox.get(timeout=pause) if pause > 0 else self._inbox.get_nowait())
        except queue.Empty:
            return False
        return True

    def turn(self) -> bool:
        """Take in what has arrived and run one unit of work; False if there is nothing to do.

        What is next is chosen when the device has room for it: who came meanwhile is not late."""
        self._stopwatch.wait()
        while not self._stopping:
            try:
                self._accept(self._inbox.get_nowait())
            except queue.Empty:
                break
        return not self._stopping and self._make_turn()

    def _make_turn(self) -> bool:
        self._tell(MAKE_TURN)
        for seconds in agree(list(self._stopwatch.ended())):
            if self._policy.spent(seconds) == "sample":
                self._sampler.took(seconds)
        turn = self._policy.next(training=self._training, sampling=self._sampler.busy)
        if turn is None:
            return False
        with self._stopwatch.unit():
            if turn == "train":
                self._train()
            else:
                self._sample()
        self._last_work = time.monotonic()
        return True

    @property
    def _training(self) -> bool:
        """Whether training has work."""
        return bool(self._batches or self._moves or self._runs or self._batches.any_ready)

    def _get_ready(self) -> bool:
        """A piece of what first calls would else wait for; False if nothing is left."""
        self._tell(GET_READY)
        try:
            self._prepared = not (self._trainer.prepare() or self._sampler.prepare())
            return not self._prepared
        except Exception:
            logger.exception("getting ready failed; the first call will try again")
            self._prepared = True
            return False

    def _compile_more(self) -> bool:
        """A kernel that few calls would else wait for; False if none is left."""
        self._tell(COMPILE_MORE)
        try:
            return self._trainer.compile_more()
        except Exception:
            logger.exception("compiling ahead failed; who needs the kernel will try again")
            return False

    # ---- commands

    def _accept(self, command: Command | _Wake | _Fetched | None) -> None:
        if isinstance(command, RunCommand | Sample):
            self._last_work = time.monotonic()
        if command is None:
            self._stopping = True
        elif isinstance(command, _Wake):
            return
        else:
            self._tell(command)
            self._take_in(command)

    def _take_in(self, command: Command | _Fetched) -> None:
        if isinstance(command, _Fetched):
            self._load_fetched(command)
        elif isinstance(command, RunCommand):
            self._runs.add(command)
        elif isinstance(command, Sample):
            self._begin_sample(command)
        elif isinstance(command, LoadWeights) and self._lacks(command.source):
            self._fetch(command, command.weights)
        else:
            self._answer(command.op, lambda: self._carry_out(command))

    def _carry_out(self, command: CheckLoss | LoadWeights | DropWeights | Cancel | Ping) -> Result:
        match command:
            case CheckLoss():
                self._trainer.check_loss(command)
            case LoadWeights():
                self._sampler.versions.add(command.weights, command.source.path)
            case DropWeights():
                self._sampler.versions.drop(command.weights)
                self._fetched.let_go(command.weights)
            case Cancel():
                failed = self._sampler.cancel(command.target)
                if failed is not None:
                    self._emit(failed)
            case Ping():
                return self._stats()
        return None

    def _begin_sample(self, command: Sample) -> None:
        try:
            self._sampler.submit(command, lambda: self._inbox.put(_Wake()))
        except Exception as error:
            self._emit(failure(command.op, error))

    def _serve(self, command: SingleCommand) -> None:
        match command:
            case CreateRun():
                self._moves.carry_out(command, self._trainer.creating(command))
            case OptimStep():
                self._answer(command.op, lambda: self._trainer.optim_step(command))
            case LoadRun() if self._lacks(command.source):
                self._runs.hold(command.run)
                self._fetch(command, command.op)
            case LoadRun():
                self._moves.carry_out(command, self._loading(command))
            case DropRun():
                self._answer(command.op, lambda: self._trainer.drop_run(command))
            case ServeRun():
                self._answer(command.op, lambda: self._publish(command))
            case SaveRun():
                self._save(command)

    def _is_away(self, command: RunCommand) -> bool:
        """Whether its run has to come back first. To be dropped, it need not."""
        residency, run = self._trainer.residency, command.run
        parked = residency.is_parked(run) and not isinstance(command, DropRun)
        return parked or residency.is_leaving(run)

    def _lacks(self, source: WeightsRef) -> bool:
        return agree(self._fetched.lacks(source))

    def _fetch(self, command: LoadRun | LoadWeights, user: str) -> None:
        """Get what this host lacks in the background; everybody else goes on. The first rank does
        it for all."""
        if not self._leads:
            return

        def bring() -> None:
            try:
                here = replace(command, source=self._fetched.bring(command.source, user))
                self._inbox.put(_Fetched(here))
            except Exception as error:
                self._inbox.put(_Fetched(command, error))

        self._fetcher.submit(bring)

    def _load_fetched(self, fetched: _Fetched) -> None:
        command = fetched.command
        if isinstance(command, LoadRun):
            self._runs.release(command.run)
        if fetched.error is not None:
            self._emit(failure(command.op, fetched.error))
        elif isinstance(command, LoadWeights):
            self._answer(command.op, lambda: self._carry_out(command))
        else:
            self._moves.carry_out(command, self._loading(command))

    def _loading(self, command: LoadRun) -> Pieces[RunInfo]:
        try:
            return (yield from self._trainer.loading(command))
        finally:
            self._fetched.let_go(command.op)

    def _publish(self, command: ServeRun) -> None:
        """Hand the run's weights over to sampling without a detour by the disk."""
        weights = self._trainer.weights(command.run)
        self._sampler.versions.serve(command.weights, command.folder, weights)

    def _save(self, command: SaveRun) -> None:
        """Copy the run now, write the copy in the background; later commands need not wait."""
        try:
            snapshot = self._trainer.snapshot(command.run, command.training)
        except Exception as error:
            self._emit(failure(command.op, error))
            return
        if self._leads:
            self._writer.submit(self._answer, command.op, lambda: save(snapshot, command.folder))

    def _answer(self, op: str, work: Callable[[], Result]) -> None:
        started = time.monotonic()
        try:
            result = work()
        except Exception as error:
            self._emit(failure(op, error))
        else:
            self._emit(Done(op, result, time.monotonic() - started))

    # ---- units of work

    def _train(self) -> None:
        """One unit: every other one a piece of a move, while there is one."""
        self._moves.call_back()
        self._moved = bool(self._moves) and not self._moved
        if self._moved or not self._train_others():
            self._moved = True
            if self._moves:
                self._moves.step()

    def _train_others(self) -> bool:
        """A command that goes alone, else one of the batch whose turn it is, if there is any."""
        busy = self._batches.runs
        command = self._runs.take_single(busy)
        if command is None:
            self._batches.begin(busy)
            if not self._batches:
                self._runs.new_round()
                command = self._runs.take_single(())
        if command is not None:
            self._serve(command)
        elif self._batches:
            self._batches.run_unit()
            self._runs.new_round()
        else:
            return False
        return True

    def _sample(self) -> None:
        try:
            events = self._sampler.step()
        except Exception as error:
            logger.exception("a sampling step failed")
            events = self._sampler.abort(short(error))
            release_memory(error)
        for event in events:
            self._emit(event)

    def _stats(self) -> Stats:
        sampler = self._sampler
        return Stats(
            runs=self._trainer.runs,
            weights=len(sampler.versions),
            pages_used=sampler.pool.used,
            pages_total=sampler.pool.total,
            adapter_bytes=self._trainer.nbytes + sampler.versions.nbytes,
            prepared=self._prepared,
            host_bytes=self._trainer.residency.host_bytes,
        )
