"""The two halves of an operation's life with the engine, as every kind fills them in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tinkex.engine.messages import Command, Result
from tinkex.server.promises import Outcome
from tinkex.server.storage.database.commit import Work


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What an operation came to: its outcome, and what else becomes true in the same commit.

    `metrics` and `path`, of what was measured or saved, are for those who report on it.
    """

    outcome: Outcome
    writes: tuple[Work, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    path: str | None = None


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """An operation ready for the engine.

    `commands` are sent in order; the answer to the last one goes to `conclude`. `abandon` cleans up
    when it is never reached.
    """

    commands: tuple[Command, ...]
    conclude: Callable[[Result], Awaitable[Conclusion]]
    tokens: int = 0
    abandon: Callable[[], None] = _nothing
