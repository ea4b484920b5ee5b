"""Keeps one engine process of a base model alive, talks to it, and says why work waits.

`Engine.submit` returns a result or raises: `CommandFailed` when the engine refused or failed the
command (it then changed nothing), `EngineLost` when the process died before answering or has no
such run. The caller sends again what was lost: the engine holds no state that the log cannot
rebuild. Lives of the process are numbered; state made in one is gone in the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Literal

from tinkex.engine.messages import (
    Command,
    Done,
    Event,
    Failed,
    Ping,
    Progress,
    Ready,
    Result,
    Stats,
)
from tinkex.server.clock import Clock
from tinkex.server.engines.residence import Residence
from tinkex.server.engines.worker import EngineSpec, Launch, Worker, WorkerDied

logger = logging.getLogger(__name__)

Phase = Literal["starting", "ready", "restarting", "stopped"]
_HEALTHY_S = 60.0
_SILENT_S = 15.0
"""After this many seconds without an answer an engine is said to be silent. All are asked for their
state every ten seconds. A silent one usually computes; its process may also have been stopped."""
_ASLEEP, _LOADING = "it starts when there is work for it", "the engine is loading the model"


_RESTARTS = "the engine stopped ({}) and is being restarted"


class EngineLost(Exception):
    """The engine died, or is not there, before it answered."""


class RunLost(EngineLost):
    """The engine has no such run. Callers treat this like its death: what the engine does not have
    is rebuilt from the log, whatever the server believed."""


class CommandFailed(Exception):
    """The engine's own answer: the command failed and changed nothing."""

    def __init__(self, kind: Literal["user", "server", "cancelled"], message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Engine:
    """One engine of a base model, through all its lives. `draining` says why it gets no new work;
    it may finish what it has. While `is_held_up`, its start waits for something outside.
    `cannot_start` means that the engine itself gave a reason; one that was only killed is started
    again."""

    def __init__(
        self,
        spec: EngineSpec,
        launch: Launch,
        clock: Clock,
        backoff_s: tuple[float, ...],
    ) -> None:
        self.spec = spec
        self.name, self.model = spec.name, spec.model.name
        self.phase: Phase = "starting"
        self.reason = _ASLEEP
        self.life = 0
        self.deaths = 0
        self.died_of = ""
        self.cannot_start = False
        self.facts: Ready | None = None
        self.draining: str | None = None
        self.is_held_up = False
        self._launch = launch
        self._clock = clock
        self._backoff_s = backoff_s
        self._worker: Worker | None = None
        self._answers: dict[str, asyncio.Future[Result]] = {}
        self._streams: dict[str, Callable[[Progress], None]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._changed = asyncio.Event()
        self._pings = itertools.count()
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._heard_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._living: asyncio.Task[str] | None = None
        self._is_renewed = False

    @property
    def residence(self) -> Residence:
        """The residence of state that is loaded now."""
        return Residence(self.name, self.life)

    @property
    def is_ready(self) -> bool:
        return self.phase == "ready"

    @property
    def is_away(self) -> bool:
        """Whether this life, or the last one, cannot see this host's folders."""
        return self.facts is not None and self.facts.is_away

    @property
    def takes_work(self) -> bool:
        """Whether it accepts new work."""
        return self.phase == "ready" and self.draining is None

    @property
    def state(self) -> str:
        """One word: its phase, asleep, or draining."""
        if self.is_asleep:
            return "asleep"
        return "draining" if self.is_ready and self.draining is not None else self.phase

    @property
    def condition(self) -> str:
        """Why it does not serve. For one that should serve: how long it has been silent, if that is
        long."""
        silent = self._silent_s()
        if self.is_ready and silent >= _SILENT_S:
            return f"it has not answered for {silent:.0f} s"
        return self.reason

    def _silent_s(self) -> float:
        """How long it has had something to answer and sent nothing."""
        if self._busy_since is None:
            return 0.0
        return self._clock.monotonic() - max(self._busy_since, self._heard_at)

    @property
    def under_way(self) -> int:
        """How many commands it has not answered yet."""
        return len(self._answers)

    @property
    def is_asleep(self) -> bool:
        """Whether it was not started yet, or was stopped because it is not needed."""
        return self._task is None

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change of phase."""
        self._listeners.append(listener)

    def wake(self) -> None:
        """Start the process unless it was started already."""
        if self._task is None:
            self.reason = _LOADING
            self._task = asyncio.get_running_loop().create_task(self._live())

    async def stop(self) -> None:
        """End the process; pending commands are lost."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._lose("the server is stopping")
        self._enter("stopped", "the server is stopping")

    async def rest(self) -> None:
        """End the process until the engine is woken again; its state is lost."""
        task = self._task
        if task is None:
            return
        self._end_life("the engine is let go", "the engine was let go")
        task.cancel()
        await asyncio.wait([task])
        self._task, self.draining, self.is_held_up = None, None, False
        self._enter("starting", _ASLEEP)

    def drain(self, why: str) -> None:
        """Accept no new work from now on."""
        self.draining = why
        self._tell()

    def resume(self) -> None:
        """Accept work again."""
        self.draining = None
        self._tell()

    def renew(self) -> None:
        """End this life and start the next at once. Not counted as a death: an operator asked for
        it."""
        if self._living is not None and self.is_ready:
            self._is_renewed = True
            self._end_life("the engine is being restarted by its operator", "it was restarted")
            self._living.cancel()

    async def ready(self) -> Ready:
        """Wait until the engine can serve, starting it if need be."""
        self.wake()
        while not self.is_ready:
            self._changed.clear()
            await self._changed.wait()
        assert self.facts is not None
        return self.facts

    async def is_prepared(self) -> bool:
        """Whether a sample sent now would start at once. Raises `EngineLost`."""
        stats = await self.stats()
        return stats is None or stats.prepared

    async def stats(self) -> Stats | None:
        """Its memory and counters in this life. Raises `EngineLost`."""
        stats = await self.submit(Ping(f"ping-{next(self._pings)}"))
        return stats if isinstance(stats, Stats) else None

    def busy_seconds(self) -> float:
        """How long it has had work, over all its lives."""
        since = self._busy_since
        return self._busy_s + (0.0 if since is None else self._clock.monotonic() - since)

    async def submit(
        self,
        command: Command,
        on_progress: Callable[[Progress], None] | None = None,
        life: int | None = None,
    ) -> Result:
        """Send a command and wait for its answer."""
        answer = await self.send(command, life, on_progress)
        return await answer

    async def send(
        self,
        command: Command,
        life: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> asyncio.Future[Result]:
        """Send a command; the returned future is the engine's answer. A command that depends on
        earlier ones names their `life`; no other life gets it."""
        worker = self._worker
        if worker is None or not self.is_ready:
            raise EngineLost(self.reason)
        if life is not None and life != self.life:
            raise EngineLost("the engine was restarted before this was sent")
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._answers[command.op] = answer
        if self._busy_since is None:
            self._busy_since = self._clock.monotonic()
        if on_progress is not None:
            self._streams[command.op] = on_progress
        try:
            await worker.send(command)
        except WorkerDied as error:
            self._forget(command.op)
            if self._worker is worker:
                # Whoever listens to it may hear of its end only later. Until then it would look
                # ready, and what is sent again and again be taken for what it dies of.
                self._end_life(_RESTARTS.format(error), str(error))
            raise EngineLost(str(error)) from error
        except BaseException:
            self._forget(command.op)
            raise
        return answer

    async def _live(self) -> None:
        attempt = 0
        while True:
            started = self._clock.monotonic()
            why = await self._whole_life()
            if self._is_renewed:
                self._is_renewed = False
                continue
            if self._clock.monotonic() - started > _HEALTHY_S:
                attempt = 0
            pause = self._backoff_s[min(attempt, len(self._backoff_s) - 1)]
            attempt += 1
            self._tell_death(why, pause)
            await asyncio.sleep(pause)

    async def _whole_life(self) -> str:
        """Run one life in a task of its own, which `renew` ends. Returns how it ended."""
        self._living = asyncio.get_running_loop().create_task(self._one_life())
        try:
            return await self._living
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if not self._is_renewed or (own is not None and own.cancelling()):
                raise
            return "it was restarted"

    def _end_life(self, reason: str, why: str) -> None:
        """Stop sending to this life, though its process may take a while to exit."""
        self._enter("restarting", reason)
        self._lose(why)

    async def _one_life(self) -> str:
        worker = self._launch(self.spec)
        try:
            begun = self._clock.monotonic()
            self.facts = await worker.start(self._wait_for)
            self._worker = worker
            self.life += 1
            self._tell_ready(self.facts, self._clock.monotonic() - begun)
            self._enter("ready", "")
            while True:
                events = await worker.receive()
                self._heard_at = self._clock.monotonic()
                for event in events:
                    self._deliver(event)
        except WorkerDied as error:
            self.deaths += 1
            self.died_of = str(error)
            self.cannot_start = error.said_so and self._worker is None
            self._end_life(_RESTARTS.format(error), self.died_of)
            return self.died_of
        finally:
            self._worker = None
            await worker.stop()

    def _wait_for(self, reason: str) -> None:
        self.is_held_up = True
        self._enter(self.phase, reason)

    def _tell_death(self, why: str, pause: float) -> None:
        facts = {"event": "engine_died", "model": self.model, "deaths": self.deaths}
        facts["engine"] = self.name
        text = "engine %s died: %s; restarting in %.1f s, what it held is done again"
        logger.error(text, self.name, why, pause, extra={"facts": facts})

    def _tell_ready(self, facts: Ready, seconds: float) -> None:
        came = "loaded" if self.life == 1 else "is back: loaded again"
        text = f"engine {self.name} {came} after {seconds:.1f} s"
        said = {"event": "engine_loaded", "model": self.model, "life": self.life}
        said["engine"] = self.name
        extra = {"facts": said | {"memory_plan": dict(facts.memory_plan)}}
        where = f"{facts.dtype} on {facts.device}"
        where += ", steady: the same bits in any company" if facts.steady else ""
        logger.info("%s: %s%s", text, where, _plan(facts), extra=extra)

    def _deliver(self, event: Event) -> None:
        if isinstance(event, Progress):
            stream = self._streams.get(event.op)
            if stream is not None:
                stream(event)
        elif isinstance(event, Done | Failed):
            answer = self._forget(event.op)
            if answer is not None and not answer.done():
                if isinstance(event, Done):
                    answer.set_result(event.result)
                elif event.kind == "lost":
                    answer.set_exception(RunLost(event.message))
                else:
                    answer.set_exception(CommandFailed(event.kind, event.message))

    def _forget(self, op: str) -> asyncio.Future[Result] | None:
        self._streams.pop(op, None)
        answer = self._answers.pop(op, None)
        if not self._answers:
            self._rest()
        return answer

    def _rest(self) -> None:
        self._busy_s, self._busy_since = self.busy_seconds(), None

    def _lose(self, why: str) -> None:
        answers, self._answers = self._answers, {}
        self._rest()
        self._streams.clear()
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(EngineLost(why))
                answer.exception()  # the waiting caller may be gone

    def _enter(self, phase: Phase, reason: str) -> None:
        self.phase, self.reason = phase, reason
        self.is_held_up = self.is_held_up and phase != "ready"
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        for listener in self._listeners:
            listener()


def _plan(facts: Ready) -> str:
    """The memory plan in words."""
    parts = [f"{part} {size / 1e9:.1f} GB" for part, size in facts.memory_plan.items()]
    return f"; memory planned for: {', '.join(parts)}" if parts else ""
