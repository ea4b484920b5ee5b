"""Brings samples through engines: queued per tenant, sent within bounds, cancelled.

Every pool has lanes, one per tenant. A sample gets its engine when it is sent (see `routing`). A
tenant's window bounds what it has at each engine, so that cancelling is cheap and a tenant's queue
stays here. Fairness between tenants is the engine's, because only it knows what each step costs. A
sample lost with its engine is sent again to any engine that can take it, with the same seed, and
its watchers still get each token once. Knows nothing of numbers, polls, retention or any protocol.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tinkex.engine.messages import Cancel, Progress, Sample, SampleResult
from tinkex.server.clock import Clock
from tinkex.server.engines.engine import CommandFailed, Engine, EngineLost
from tinkex.server.engines.loaded_weights import BASE, LoadedWeights
from tinkex.server.engines.pool import Engines, Pool
from tinkex.server.engines.unwritten_weights import UnwrittenWeights
from tinkex.server.sampling.rides import Ride, ServedWeights
from tinkex.server.sampling.routing import Candidate, Prefixes, choose, prefix_keys
from tinkex.server.settings import Settings
from tinkex.server.storage.manifest import CorruptCheckpoint

logger = logging.getLogger(__name__)

_LEFT_OVER = 64
"""A tenant's window is divided by this while a higher class has samples."""
_TRAINING = 4
"""Sequences that an engine's training counts as when samples are placed."""
_GONE = (
    "this sampler's weights are gone: its session ended and they were dropped, or they could not "
    "be written to the disk and were lost with the engine; save the run's weights again"
)


class Load(NamedTuple):
    """A tenant's load in a model's lane: waiting samples, how long the oldest has waited in
    seconds, and sequences at its engines."""

    model: str
    tenant: str
    waiting: int
    waited_s: float
    sequences: int


@dataclass(slots=True)
class _Lane:
    """One tenant's samples for one model: those that wait, and its sequences by engine. `rank` is
    the number of the tenant's class, 0 the highest."""

    rank: int
    queue: deque[Ride] = field(default_factory=deque)
    sequences: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Track:
    """One engine, the weights it has loaded, and its share of all lanes."""

    engine: Engine
    weights: LoadedWeights
    sequences: int = 0
    rides: int = 0

    @property
    def load(self) -> int:
        """Its load in sequences."""
        return self.sequences + _TRAINING * (self.engine.under_way > self.rides)


@dataclass(slots=True)
class _Lanes:
    """One model's lanes by tenant, and the number of lanes in each class."""

    pool: Pool
    tenants: dict[str, _Lane] = field(default_factory=dict)
    classes: Counter[int] = field(default_factory=Counter)

    def lane(self, tenant: str, class_of: Callable[[str], int]) -> _Lane:
        """A tenant's lane, created if it has none."""
        lane = self.tenants.get(tenant)
        if lane is None:
            lane = self.tenants[tenant] = _Lane(class_of(tenant))
            self.classes[lane.rank] += 1
        return lane

    def leave(self, tenant: str) -> None:
        self.classes[self.tenants.pop(tenant).rank] -= 1

    def comes_after_others(self, lane: _Lane) -> bool:
        """Whether a higher class has samples here."""
        return any(self.classes[rank] for rank in range(lane.rank))


class Lanes:
    """All samples of all engines."""

    def __init__(
        self, engines: Engines, unwritten: UnwrittenWeights, clock: Clock, settings: Settings
    ) -> None:
        limits = settings.scheduling
        self._unwritten = unwritten
        self._clock = clock
        self._limits = limits
        self._weight_of, self._class_of = settings.weight_of, settings.class_of
        self.is_held: Callable[[str], bool] = lambda tenant: False
        """Whether a tenant's samples wait here for now, whatever room the engines have."""
        self._ops, self._turns = itertools.count(), itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._prefixes = Prefixes()
        self._models = {pool.spec.name: _Lanes(pool) for pool in engines.pools}
        self._tracks = {
            engine.name: _Track(engine, LoadedWeights(engine, limits.loaded_weights, unwritten))
            for engine in engines
        }
        for engine in engines:
            engine.listen(self.pump)

    def enter(
        self,
        tenant: str,
        pool: Pool,
        weights: ServedWeights,
        command: Sample,
        on_progress: Callable[[Progress], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Ride:
        """Queue a sample, starting the model's engines if need be. The command's op, weights and
        lane are filled in here. `on_sent` is called when an engine has it."""
        pool.wake()
        op = f"sample:{next(self._ops)}"
        stream = on_progress is not None
        params = command.params
        if stream and params.seed is None:
            params = replace(params, seed=secrets.randbits(64))
        command = replace(
            command,
            op=op,
            weights=weights.name,
            lane=self._turn_of(tenant),
            stream=stream,
            params=params,
        )
        result: asyncio.Future[SampleResult] = asyncio.get_running_loop().create_future()
        entered = self._clock.monotonic()
        ride = Ride(op, tenant, pool, weights, command, on_progress, on_sent, result, entered)
        self._lane(ride).queue.append(ride)
        self.pump()
        return ride

    def _turn_of(self, tenant: str) -> str:
        """The lane name for the engine. Engines share equally between lanes, so a tenant with more
        weight uses several in turn."""
        weight = self._weight_of(tenant)
        return tenant if weight == 1 else f"{tenant}/{next(self._turns) % weight}"

    def cancel(self, ride: Ride) -> None:
        """Stop a sample that no client wants any more; the engine's rows are free within a step."""
        if ride.result.done():
            return
        ride.result.set_exception(CommandFailed("cancelled", "cancelled"))
        ride.result.exception()  # a caller that does not wait for it need not be told
        if ride.sent_at is None:
            self._lane(ride).queue.remove(ride)
            self._tidy(ride)
        elif ride.engine is not None:
            self._spawn(self._stop_engine(ride, ride.engine))

    def ahead_of(self, ride: Ride) -> int:
        """How many samples of its tenant will be sent before this one."""
        lane = self._models[ride.pool.spec.name].tenants.get(ride.tenant)
        return lane.queue.index(ride) if lane is not None and ride in lane.queue else 0

    def sequences(self, engine: Engine) -> int:
        """How many sequences are at an engine."""
        return self._tracks[engine.name].sequences

    def wanted(self, pool: Pool) -> int:
        """How many sequences of a model are at its engines or wait for them."""
        lanes = self._models[pool.spec.name].tenants.values()
        waiting = sum(ride.sequences for lane in lanes for ride in lane.queue)
        return waiting + sum(lane.sequences.total() for lane in lanes)

    def loaded(self) -> set[str]:
        """The weights that engines have loaded and may read again."""
        return {name for track in self._tracks.values() for name in track.weights.names()}

    def has_loaded(self, weights: ServedWeights) -> bool:
        """Whether an engine has these; all have the base model."""
        name = weights.name
        return name == BASE or any(track.weights.holds(name) for track in self._tracks.values())

    def loads(self) -> list[Load]:
        """Every lane that is not empty."""
        now = self._clock.monotonic()
        return [
            Load(
                model,
                tenant,
                len(lane.queue),
                now - lane.queue[0].entered if lane.queue else 0.0,
                lane.sequences.total(),
            )
            for model, lanes in self._models.items()
            for tenant, lane in lanes.tenants.items()
        ]

    def pump(self) -> None:
        """Send what fits into the windows."""
        for lanes in self._models.values():
            if lanes.tenants and lanes.pool.is_ready:
                for lane in sorted(lanes.tenants.values(), key=lambda lane: lane.rank):
                    while lane.queue and not self._is_held(lane) and self._send_first(lane):
                        pass

    def _is_held(self, lane: _Lane) -> bool:
        return self.is_held(lane.queue[0].tenant)

    async def stop(self) -> None:
        """End every sample at once."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _lane(self, ride: Ride) -> _Lane:
        return self._models[ride.pool.spec.name].lane(ride.tenant, self._class_of)

    def _send_first(self, lane: _Lane) -> bool:
        """Whether a lane's first sample could be sent."""
        ride = lane.queue[0]
        if self._unwritten.lacks(ride.weights.name, ride.pool):
            lane.queue.popleft()
            ride.sent_at = self._clock.now()
            self._spawn(self._await_weights(ride))
            return True
        track = self._route(ride, lane)
        if track is None:
            return False
        lane.queue.popleft()
        lane.sequences[track.engine.name] += ride.sequences
        track.sequences += ride.sequences
        track.rides += 1
        ride.sent_at, ride.engine = self._clock.now(), track.engine
        self._spawn(self._carry(ride, track, lane))
        return True

    def _route(self, ride: Ride, lane: _Lane) -> _Track | None:
        """The engine for a sample, if one can take it now."""
        only = self._unwritten.holder(ride.weights.name, ride.pool)
        engines = ride.pool.open() if only is None else [only]
        window = self._limits.sequences_in_flight
        if self._models[ride.pool.spec.name].comes_after_others(lane):
            window = max(1, window // _LEFT_OVER)
        able = [
            self._tracks[engine.name] for engine in engines if lane.sequences[engine.name] < window
        ]
        if not able:
            return None
        if len(ride.pool) == 1:
            return able[0]
        name = ride.weights.name
        keys = prefix_keys(name, ride.command.prompt)
        candidates = [
            Candidate(track.engine.name, track.load, name in track.weights) for track in able
        ]
        chosen = choose(candidates, self._prefixes.longest(keys)).engine
        self._prefixes.note(keys, chosen)
        return self._tracks[chosen]

    async def _await_weights(self, ride: Ride) -> None:
        """Put it back into its lane once the weights can be sampled from, or never will be."""
        await self._unwritten.usable(ride.weights.name, ride.pool)
        self._put_back(ride)

    def _put_back(self, ride: Ride) -> None:
        """Put it back at the front of its lane, unless it has ended."""
        if not ride.result.done():
            ride.sent_at = ride.engine = None
            self._lane(ride).queue.appendleft(ride)
        self._tidy(ride)
        self.pump()

    async def _carry(self, ride: Ride, track: _Track, lane: _Lane) -> None:
        try:
            await self._through_engine(ride, track)
        finally:
            lane.sequences[track.engine.name] -= ride.sequences
            track.sequences -= ride.sequences
            track.rides -= 1
        self._put_back(ride)

    async def _through_engine(self, ride: Ride, track: _Track) -> None:
        """Set the result, unless the sample has to be sent again."""
        name, weights = ride.weights.name, ride.weights
        if name not in self._unwritten and not weights.is_there:
            ride.end(CommandFailed("user", _GONE))
            return
        try:
            async with track.weights.use(name, weights.find):
                if ride.result.done():
                    return
                ride.begin()
                watch = None if ride.on_progress is None else ride.tell
                answer = await track.engine.send(ride.command, on_progress=watch)
                if ride.on_sent is not None:
                    ride.on_sent()
                found = await answer
        except EngineLost:
            self._lost(ride)
        except CommandFailed as failed:
            ride.end(failed)
        except (CorruptCheckpoint, OSError) as error:
            logger.error("weights %s cannot be sampled from: %s", name, error)
            ride.end(
                CommandFailed("server", f"the weights of this sampler cannot be read: {error}")
            )
        except Exception as error:
            logger.exception("sample %s broke", ride.op)
            ride.end(CommandFailed("server", f"the server failed on this: {type(error).__name__}"))
        else:
            assert isinstance(found, SampleResult)
            ride.end(found)

    def _lost(self, ride: Ride) -> None:
        ride.deaths += 1
        if ride.deaths >= self._limits.deaths_before_poison:
            message = f"the engine died {ride.deaths} times while it ran this"
            ride.end(CommandFailed("server", message))

    async def _stop_engine(self, ride: Ride, engine: Engine) -> None:
        try:
            await engine.submit(Cancel(f"cancel:{ride.op}", ride.op))
        except (EngineLost, CommandFailed):
            logger.debug("%s ended before it could be cancelled", ride.op)

    def _tidy(self, ride: Ride) -> None:
        lanes = self._models[ride.pool.spec.name]
        lane = lanes.tenants.get(ride.tenant)
        if lane is not None and not lane.queue and not lane.sequences.total():
            lanes.leave(ride.tenant)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
