"""The engines of this server by the names clients use for their base models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tinkex.server.clock import Clock
from tinkex.server.engines.engine import Engine
from tinkex.server.engines.model_names import split_context
from tinkex.server.engines.model_sources import declared_context
from tinkex.server.engines.worker import Launch
from tinkex.server.refusals import Refusal
from tinkex.server.settings import ModelSpec, Settings


class Engines:
    """One engine per served model; an alias is another name for one of them."""

    def __init__(self, settings: Settings, launch: Launch, clock: Clock) -> None:
        backoff = settings.timings.restart_backoff_s
        self._engines = {
            spec.name: Engine(spec, launch, clock, backoff) for spec in settings.models
        }
        self._aliases: Mapping[str, str] = settings.aliases
        self._on_demand = settings.engines_on_demand

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines.values())

    def names(self) -> list[str]:
        return [*self._engines, *self._aliases]

    def find(self, name: str) -> Engine | None:
        """The engine that serves a base model. A home may hold runs of models no longer served."""
        if name not in self._engines and name not in self._aliases:
            name, _ = split_context(name)
        return self._engines.get(self._aliases.get(name, name))

    def get(self, name: str) -> Engine:
        """The engine that serves a base model; refuses names that are not served, and contexts
        longer than the model has here."""
        engine = self.find(name)
        if engine is None:
            known = ", ".join(self.names())
            raise Refusal(
                f"base_model {name[:200]!r} is not served here; served are: {known}. "
                "Others are served by tinkex serve --model, or by TINKEX_MODELS where local"
            )
        _check_context(engine, name)
        return engine

    def spec(self, name: str) -> ModelSpec:
        return self.get(name).spec

    def start(self) -> None:
        if not self._on_demand:
            for engine in self:
                engine.wake()

    async def stop(self) -> None:
        for engine in self:
            await engine.stop()


def _check_context(engine: Engine, name: str) -> None:
    model, asked = split_context(name)
    if asked is None or name == engine.spec.name:
        return
    facts = engine.facts
    limit = declared_context(Path(engine.spec.source)) if facts is None else facts.max_context
    if limit is not None and asked > limit:
        raise Refusal(
            f"base_model {name[:200]!r} asks for a context of {asked} tokens; {model} has at most "
            f"{limit} here. Ask for {model}:peft:{limit} or less, or for {model}"
        )
