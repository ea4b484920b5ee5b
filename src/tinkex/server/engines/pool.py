"""Pools of engines: each served base model has one, by the names clients use for the model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tinkex.engine.messages import Ready
from tinkex.server.clock import Clock
from tinkex.server.engines.engine import Engine
from tinkex.server.engines.fleet import engine_specs
from tinkex.server.engines.model_names import split_context
from tinkex.server.engines.model_sources import declared_context
from tinkex.server.engines.residence import Residence
from tinkex.server.engines.worker import Launch
from tinkex.server.refusals import Refusal
from tinkex.server.settings import ModelSpec, Settings


class Pool:
    """The engines of one model. Any of them can serve it; a run lives on one of them. `fewest` are
    always awake, the others while they are needed."""

    def __init__(self, spec: ModelSpec, engines: Sequence[Engine], fewest: int) -> None:
        self.spec = spec
        self.fewest = fewest
        self._engines = {engine.name: engine for engine in engines}
        self._changed = asyncio.Event()
        for engine in engines:
            engine.listen(self._changed.set)

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines.values())

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def facts(self) -> Ready | None:
        """Facts about the model, once an engine has loaded it."""
        return next((engine.facts for engine in self if engine.facts is not None), None)

    @property
    def is_ready(self) -> bool:
        return any(engine.is_ready for engine in self)

    @property
    def is_asleep(self) -> bool:
        """Whether this model has not been requested yet."""
        return all(engine.is_asleep for engine in self)

    @property
    def takes_work(self) -> bool:
        return any(engine.takes_work for engine in self)

    @property
    def reason(self) -> str:
        """Why work waits for an engine, in words; empty if one accepts it."""
        if self.takes_work:
            return ""
        first = next((engine for engine in self if not engine.is_asleep), next(iter(self)))
        drained = next((engine.draining for engine in self if engine.draining), None)
        return first.reason or drained or ""

    def open(self) -> list[Engine]:
        """The engines that accept new work."""
        return [engine for engine in self if engine.takes_work]

    def find(self, name: str) -> Engine | None:
        return self._engines.get(name)

    def at(self, residence: Residence | None) -> Engine | None:
        """The engine with this residence, if that life still runs."""
        engine = None if residence is None else self._engines.get(residence.engine)
        alive = engine is not None and engine.is_ready and engine.residence == residence
        return engine if alive else None

    def wake(self) -> None:
        """Keep at least this many awake."""
        asleep = [engine for engine in self if engine.is_asleep]
        for engine in asleep[: max(0, self.fewest - len(self) + len(asleep))]:
            engine.wake()

    async def ready(self) -> Ready:
        """Wait until the model can be served, starting its engines if need be."""
        self.wake()
        while not self.is_ready:
            self._changed.clear()
            await self._changed.wait()
        facts = self.facts
        assert facts is not None
        return facts


class Engines:
    """All engines of a server, in pools. An alias is another name for one of those."""

    def __init__(self, settings: Settings, launch: Launch, clock: Clock) -> None:
        backoff = settings.timings.restart_backoff_s
        specs = engine_specs(settings)
        self._pools = {
            model.name: Pool(
                model,
                [Engine(spec, launch, clock, backoff) for spec in specs if spec.model is model],
                settings.fewest_engines or settings.engines,
            )
            for model in settings.models
        }
        self._aliases: Mapping[str, str] = settings.aliases
        self._on_demand = settings.engines_on_demand

    def __iter__(self) -> Iterator[Engine]:
        return (engine for pool in self.pools for engine in pool)

    @property
    def pools(self) -> list[Pool]:
        return list(self._pools.values())

    def names(self) -> list[str]:
        return [*self._pools, *self._aliases]

    def find(self, name: str) -> Pool | None:
        """The pool that serves a base model. A home may hold runs of models no longer served."""
        pool = self._pools.get(name)
        if pool is not None:
            return pool
        if name not in self._aliases:
            name, _ = split_context(name)
        return self._pools.get(self._aliases.get(name, name))

    def get(self, name: str) -> Pool:
        """The pool that serves a base model. Refuses names that are not served, and contexts longer
        than the model has here."""
        pool = self.find(name)
        if pool is None:
            known = ", ".join(self.names())
            raise Refusal(
                f"base_model {name[:200]!r} is not served here; served are: {known}. "
                "Others are served by tinkex serve --model, or by TINKEX_MODELS where local"
            )
        _check_context(pool, name)
        return pool

    def spec(self, name: str) -> ModelSpec:
        return self.get(name).spec

    def model_of(self, name: str) -> str:
        """The name of a model that clients may call by several."""
        pool = self.find(name)
        return name if pool is None else pool.spec.name

    def at(self, residence: Residence | None) -> Engine | None:
        """The engine with this residence, if that life still runs."""
        found = (pool.at(residence) for pool in self.pools)
        return next((engine for engine in found if engine is not None), None)

    def start(self) -> None:
        if not self._on_demand:
            for pool in self.pools:
                pool.wake()

    async def stop(self) -> None:
        await asyncio.gather(*(engine.stop() for engine in self))


def _check_context(pool: Pool, name: str) -> None:
    model, asked = split_context(name)
    if asked is None or name == pool.spec.name:
        return
    facts = pool.facts
    limit = declared_context(Path(pool.spec.source)) if facts is None else facts.max_context
    if limit is not None and asked > limit:
        raise Refusal(
            f"base_model {name[:200]!r} asks for a context of {asked} tokens; {model} has at most "
            f"{limit} here. Ask for {model}:peft:{limit} or less, or for {model}"
        )
