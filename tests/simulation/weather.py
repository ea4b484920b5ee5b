"""What a seed's story has to cope with: deaths, losses, crashes, room, engines."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Weather:
    """How bad this seed's day is."""

    runs: int
    operations: int
    mortality: float
    full: float
    lost: float
    crashes: int
    poison: int
    damage: float
    snapshot_steps: int
    places: int
    unsaved: float
    engines: int
    moves: float
    fewest: int

    @classmethod
    def drawn(cls, dice: random.Random) -> Weather:
        runs = dice.choice((1, 2, 3, 3, 3, 3, 12))
        engines = dice.choice((1, 1, 2, 3, 4))
        return cls(
            runs=runs,
            operations=dice.randint(3, 14) if runs <= 3 else dice.randint(0, 3),
            mortality=dice.choice((0.0, 0.02, 0.1)),
            full=dice.choice((0.0, 0.0, 0.05)),
            lost=dice.choice((0.0, 0.1, 0.3)),
            crashes=dice.randint(0, 4),
            poison=dice.choice((3, 1000)),
            damage=dice.choice((0.0, 0.5, 1.0)),
            snapshot_steps=dice.choice((1, 3)),
            places=dice.choice((1, 2, 2, 4)),
            unsaved=dice.choice((0.0, 0.0, 0.3, 1.0)),
            engines=engines,
            moves=dice.choice((0.0, 0.5, 3.0)),
            fewest=dice.choice((1, engines)),
        )
