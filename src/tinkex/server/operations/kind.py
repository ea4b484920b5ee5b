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
    """What the store keeps of it, and clients are told where an answer has a `type`."""
    changes: Changes = "nothing"
    """Of the run's state. What changes anything is repeated when that state is lost."""
    chunked: bool = False
    """Whether one call may be several operations, of which the first is sent last."""
    pipelined: bool = False
    """Whether it may be with the engine before the operation ahead of it has ended."""
    saves: bool = False
    """Whether it only writes the run down: what comes behind it need not wait for its end."""
    beside_saves: bool = False
    """Whether it need not wait itself for saves ahead of it that are still being written."""
    pins: bool = False
    """Whether it reads files that are kept for its repetition until a snapshot covers it."""
    is_step: bool = False
    """Whether it is a training step, by which snapshots are spaced and people count."""

    @property
    def is_repeated(self) -> bool:
        return self.changes != "nothing"
