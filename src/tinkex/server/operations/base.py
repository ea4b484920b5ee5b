"""What every kind of operation fills in: its facts, its body's reader, its life with the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from tinkex.engine.messages import Command, Datum, Result, Tensor
from tinkex.server.checkpoints.service import Checkpoints
from tinkex.server.clock import Clock
from tinkex.server.engines.pool import Engines
from tinkex.server.engines.unwritten_weights import UnwrittenWeights
from tinkex.server.fair_threads import FairThreads
from tinkex.server.operations.custom_losses import Losses
from tinkex.server.operations.kind import Kind
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.promises import Outcome
from tinkex.server.protocol.reading import Reader
from tinkex.server.sampling.kept_routes import KeptRoutes
from tinkex.server.sampling.unnamed_weights import UnnamedWeights
from tinkex.server.storage.database.commit import Work
from tinkex.server.storage.pins import PinStore

Example: TypeAlias = tuple[Datum, Mapping[str, Tensor]]
"""A datum that was trained on, and the loss's outputs for it."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What an operation came to: its outcome, and what else becomes true in the same commit."""

    outcome: Outcome  # what the client is told
    writes: tuple[Work, ...] = ()  # rows of the same commit
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What was measured, for those who report on it."""
    path: str | None = None
    """Of the checkpoint that was saved, likewise."""
    sampler: str | None = None
    """The sampler that was made, likewise."""
    datums: int = 0
    """In how many it was measured, likewise."""
    example: Example | None = None
    """One of them, likewise."""


def _nothing() -> None: ...


def _nothing_of(_: Exception) -> None: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """An operation ready for the engine."""

    commands: tuple[Command, ...]  # sent in order
    conclude: Callable[[Result], Awaitable[Conclusion]]  # takes the answer to the last one
    tokens: int = 0  # trained on, for usage and reports
    routes: bytes | None = None  # that it replays: kept for when it is repeated
    abandon: Callable[[], None] = _nothing  # cleans up when `conclude` is never reached
    # Told once the first is answered: the rest only makes it last.
    early: Callable[[], Awaitable[Outcome]] | None = None
    kept_back: Callable[[Exception], None] = _nothing_of  # told why, if it does not last


class Around(NamedTuple):
    """The parts of the server that operations may use."""

    checkpoints: Checkpoints  # where saves go and loads come from
    unnamed: UnnamedWeights  # weights that samplers have and nobody named
    unwritten: UnwrittenWeights  # weights that are sampled before they are on disk
    losses: Losses  # custom ones, by id
    pins: PinStore  # what a load reads until a snapshot covers it
    engines: Engines  # the pools of all models
    clock: Clock  # for times that are stored
    routes: KeptRoutes  # experts that sampled tokens went to, for training's replay
    reading: FairThreads  # where bodies are read, in their tenants' turns


Prepare: TypeAlias = Callable[[Around, Run, Entry, bytes], Awaitable[Prepared]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationKind(Kind):
    """A kind with what it does."""

    prepare: Prepare
    """Makes commands of a body whose turn has come; a `Refusal` is its failed future."""
    path: str | None = None
    """Where clients send one, if that is all the route does; its body is then JSON."""
    reader: Reader[Any] | None = None
    """Reads such a body: the API's description is made from it."""
    uncounted: str | None = None
    """A field that a retry of the same request may send with another value."""
