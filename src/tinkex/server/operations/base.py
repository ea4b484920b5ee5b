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
"""A training datum and the loss's outputs for it."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The end of an operation: its outcome, and what else is committed with it."""

    outcome: Outcome  # what the client is told
    writes: tuple[Work, ...] = ()  # rows of the same commit
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What was measured, for reports."""
    path: str | None = None
    """Path of the saved checkpoint, for reports."""
    sampler: str | None = None
    """The new sampler, for reports."""
    datums: int = 0
    """Number of datums that were measured, for reports."""
    example: Example | None = None
    """One of these datums, for reports."""


def _nothing() -> None: ...


def _nothing_of(_: Exception) -> None: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """An operation ready for the engine."""

    commands: tuple[Command, ...]  # sent in order
    conclude: Callable[[Result], Awaitable[Conclusion]]  # takes the answer to the last one
    tokens: int = 0  # tokens trained on, for usage and reports
    routes: bytes | None = None  # replayed routes, kept for a repetition after a loss
    abandon: Callable[[], None] = _nothing  # cleans up when `conclude` is never reached
    # Told once the first is answered: the rest only makes it durable.
    early: Callable[[], Awaitable[Outcome]] | None = None
    kept_back: Callable[[Exception], None] = _nothing_of  # told why, if it does not become durable


class Around(NamedTuple):
    """The parts of the server that operations may use."""

    checkpoints: Checkpoints  # where saves go and loads come from
    unnamed: UnnamedWeights  # unnamed weights of samplers
    unwritten: UnwrittenWeights  # weights that are sampled before they are on disk
    losses: Losses  # custom losses, by id
    pins: PinStore  # folders that a load reads until a snapshot covers it
    engines: Engines  # the pools of all models
    clock: Clock  # for times that are stored
    routes: KeptRoutes  # experts that sampled tokens went to, for route replay
    reading: FairThreads  # where bodies are read, in their tenants' turns


Prepare: TypeAlias = Callable[[Around, Run, Entry, bytes], Awaitable[Prepared]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationKind(Kind):
    """An operation kind and what it does."""

    prepare: Prepare
    """Makes commands from a body when its turn has come; a `Refusal` is its failed future."""
    path: str | None = None
    """The route for it, if the route does nothing else; its body is then JSON."""
    reader: Reader[Any] | None = None
    """Reads such a body: the API's description is made from it."""
    uncounted: str | None = None
    """A field that may differ when a client repeats the same request."""
