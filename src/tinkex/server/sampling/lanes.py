"""Samples on their way through an engine: queued per tenant, sent within bounds, cancelled.

Every engine has lanes, one per tenant. A tenant's window bounds what it has with the engine, so
that cancelling is cheap and one tenant's queue stays here; between tenants the engine itself is
fair, because it alone knows what each step costs. A sample lost with the engine is sent again, with
the same seed, and who watches it gets each token once all the same. Knows nothing of numbers,
polls, retention or any protocol.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace

from tinkex.engine.messages import Cancel, Progress, Sample, SampleResult, TopK
from tinkex.server.clock import Clock
from tinkex.server.engines.engine import CommandFailed, Engine, EngineLost
from tinkex.server.engines.loaded_weights import BASE, Find, LoadedWeights
from tinkex.server.engines.pool import Engines
from tinkex.server.engines.unwritten_weights import UnwrittenWeights
from tinkex.server.settings import Scheduling
from tinkex.server.storage.folders import Folders

logger = logging.getLogger(__name__)

_GONE = (
    "this sampler's weights are gone: its session ended and they were dropped, or they could not "
    "be written to the disk and were lost with the engine; save the run's weights again"
)


@dataclass(frozen=True, slots=True)
class ServedWeights:
    """What to sample from: an adapter's folder by name, or with none the base model. `digest`
    names its content, where that is known."""

    name: str = BASE
    folders: Folders | None = None
    digest: str = ""

    @property
    def is_there(self) -> bool:
        return self.folders is None or self.folders.has(self.name)

    @property
    def find(self) -> Find | None:
        """How an engine gets them; None for the base model, which it has."""
        folders = self.folders
        return None if folders is None else lambda: folders.reference(self.name, self.digest)


@dataclass(slots=True, eq=False)
class Ride:
    """One sample in a lane since `entered`, on the monotonic clock. `result` ends with what the
    engine said, or `CommandFailed`."""

    op: str
    tenant: str
    engine: Engine
    weights: ServedWeights
    command: Sample
    on_progress: Callable[[Progress], None] | None
    result: asyncio.Future[SampleResult]
    entered: float
    sent_at: float | None = None
    deaths: int = 0
    _told: dict[int, int] = field(default_factory=dict)
    _come: dict[int, int] = field(default_factory=dict)

    @property
    def sequences(self) -> int:
        return self.command.num_samples

    def begin(self) -> None:
        """It is sent: its tokens will come from the first on."""
        self._come = {}

    def tell(self, progress: Progress) -> None:
        """Hand on what has not been handed on before."""
        index, count = progress.index, len(progress.tokens)
        start = self._come.get(index, 0)
        self._come[index] = start + count
        known = max(0, self._told.get(index, 0) - start)
        if known < count and self.on_progress is not None and not self.result.done():
            self._told[index] = start + count
            self.on_progress(_without(progress, known) if known else progress)


@dataclass(frozen=True, slots=True)
class Load:
    """What a tenant has in a model's lane: samples that wait, the time in seconds the oldest of
    them has, and sequences with the engine."""

    model: str
    tenant: str
    waiting: int
    waited_s: float
    sequences: int


@dataclass(slots=True)
class _Lane:
    """One tenant's samples for one engine: those that wait, and how many sequences are with it."""

    queue: deque[Ride] = field(default_factory=deque)
    sequences: int = 0


@dataclass(slots=True)
class _Track:
    """One engine, the weights it has loaded, and its lanes."""

    engine: Engine
    weights: LoadedWeights
    lanes: dict[str, _Lane] = field(default_factory=dict)


class Lanes:
    """All samples of all engines."""

    def __init__(
        self, engines: Engines, unwritten: UnwrittenWeights, clock: Clock, limits: Scheduling
    ) -> None:
        self._unwritten = unwritten
        self._clock = clock
        self._limits = limits
        self._ops = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tracks = {
            engine.spec.name: _Track(
                engine, LoadedWeights(engine, limits.loaded_weights, unwritten)
            )
            for engine in engines
        }
        for engine in engines:
            engine.listen(self.pump)

    def enter(
        self,
        tenant: str,
        engine: Engine,
        weights: ServedWeights,
        command: Sample,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Ride:
        """Queue a sample, its engine woken if need be. The command's op, weights and lane are
        filled in here."""
        engine.wake()
        op = f"sample:{next(self._ops)}"
        stream = on_progress is not None
        params = command.params
        if stream and params.seed is None:
            params = replace(params, seed=secrets.randbits(64))
        command = replace(
            command, op=op, weights=weights.name, lane=tenant, stream=stream, params=params
        )
        result: asyncio.Future[SampleResult] = asyncio.get_running_loop().create_future()
        entered = self._clock.monotonic()
        ride = Ride(op, tenant, engine, weights, command, on_progress, result, entered)
        self._lane(ride).queue.append(ride)
        self.pump()
        return ride

    def cancel(self, ride: Ride) -> None:
        """Stop a sample nobody wants any more; the engine's rows are free within a step."""
        if ride.result.done():
            return
        ride.result.set_exception(CommandFailed("cancelled", "cancelled"))
        ride.result.exception()  # who does not wait for it need not be told
        if ride.sent_at is None:
            self._lane(ride).queue.remove(ride)
            self._tidy(ride)
        else:
            self._spawn(self._stop_engine(ride))

    def ahead_of(self, ride: Ride) -> int:
        """How many samples of its tenant will be sent before this one."""
        lane = self._tracks[ride.engine.spec.name].lanes.get(ride.tenant)
        return lane.queue.index(ride) if lane is not None and ride in lane.queue else 0

    def loads(self) -> list[Load]:
        """Every lane with something in it."""
        now = self._clock.monotonic()
        return [
            Load(
                model,
                tenant,
                len(lane.queue),
                now - lane.queue[0].entered if lane.queue else 0.0,
                lane.sequences,
            )
            for model, track in self._tracks.items()
            for tenant, lane in track.lanes.items()
        ]

    def pump(self) -> None:
        """Send what fits into the windows."""
        for track in self._tracks.values():
            if track.engine.is_ready:
                for lane in track.lanes.values():
                    while lane.queue and lane.sequences < self._limits.sequences_in_flight:
                        self._send(track, lane)

    async def stop(self) -> None:
        """End every sample where it stands."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _lane(self, ride: Ride) -> _Lane:
        return self._tracks[ride.engine.spec.name].lanes.setdefault(ride.tenant, _Lane())

    def _send(self, track: _Track, lane: _Lane) -> None:
        ride = lane.queue.popleft()
        lane.sequences += ride.sequences
        ride.sent_at = self._clock.now()
        self._spawn(self._carry(ride, track, lane))

    async def _carry(self, ride: Ride, track: _Track, lane: _Lane) -> None:
        try:
            await self._through_engine(ride, track)
        finally:
            lane.sequences -= ride.sequences
        if not ride.result.done():
            ride.sent_at = None
            lane.queue.appendleft(ride)
        self._tidy(ride)
        self.pump()

    async def _through_engine(self, ride: Ride, track: _Track) -> None:
        """Set the result, unless the sample has to be sent again."""
        name, weights = ride.weights.name, ride.weights
        await self._unwritten.usable(name, track.engine)
        if name not in self._unwritten and not weights.is_there:
            _end(ride, CommandFailed("user", _GONE))
            return
        try:
            async with track.weights.use(name, weights.find):
                if ride.result.done():
                    return
                ride.begin()
                watch = None if ride.on_progress is None else ride.tell
                found = await track.engine.submit(ride.command, watch)
        except EngineLost:
            self._lost(ride)
        except CommandFailed as failed:
            _end(ride, failed)
        except Exception as error:
            logger.exception("sample %s broke", ride.op)
            _end(
                ride, CommandFailed("server", f"the server failed on this: {type(error).__name__}")
            )
        else:
            assert isinstance(found, SampleResult)
            _end(ride, found)

    def _lost(self, ride: Ride) -> None:
        ride.deaths += 1
        if ride.deaths >= self._limits.deaths_before_poison:
            message = f"the engine died {ride.deaths} times while it ran this"
            _end(ride, CommandFailed("server", message))

    async def _stop_engine(self, ride: Ride) -> None:
        try:
            await ride.engine.submit(Cancel(f"cancel:{ride.op}", ride.op))
        except (EngineLost, CommandFailed):
            logger.debug("%s ended before it could be cancelled", ride.op)

    def _tidy(self, ride: Ride) -> None:
        lanes = self._tracks[ride.engine.spec.name].lanes
        lane = lanes.get(ride.tenant)
        if lane is not None and not lane.queue and not lane.sequences:
            del lanes[ride.tenant]

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _without(progress: Progress, known: int) -> Progress:
    """What lies behind its first `known` tokens."""
    topk = progress.topk
    return replace(
        progress,
        tokens=progress.tokens[known:],
        logprobs=progress.logprobs[known:],
        topk=None if topk is None else TopK(topk.ids[known:], topk.logprobs[known:]),
    )


def _end(ride: Ride, found: SampleResult | CommandFailed) -> None:
    if ride.result.done():
        return
    if isinstance(found, SampleResult):
        ride.result.set_result(found)
    else:
        ride.result.set_exception(found)
