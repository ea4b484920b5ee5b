"""An operation kind as those know it who never read a body: the log, the scheduler, the store.

Plain facts. What a kind does with its body is in the module that defines it; `kinds` lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Changes = Literal["nothing", "gradient", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """One kind of operation."""

    name: str
    """Its name in the store, and in answers with a `type`."""
    changes: Changes = "nothing"
    """Whether it changes the run's state. If so, it is repeated when that state is lost."""
    chunked: bool = False
    """Whether one call may be several operations, of which the first is sent last."""
    pipelined: bool = False
    """Whether it may be at the engine before the operation ahead of it has ended."""
    saves: bool = False
    """Whether it only saves the run: later operations need not wait for its end."""
    beside_saves: bool = False
    """Whether it need not wait for saves ahead of it that are still being written."""
    pins: bool = False
    """Whether it reads files that are kept for its repetition until a snapshot covers it."""
    is_step: bool = False
    """Whether it is a training step: snapshots are spaced by these, and people count them."""

    @property
    def is_repeated(self) -> bool:
        return self.changes != "nothing"
