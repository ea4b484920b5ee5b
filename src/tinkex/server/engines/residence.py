"""Where something lives: in which engine's memory, and in which of that engine's lives."""

from __future__ import annotations

from typing import NamedTuple


class Residence(NamedTuple):
    """An engine and one of its lives. State made in one life is gone in the next."""

    engine: str
    life: int
