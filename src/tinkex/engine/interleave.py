"""Whose turn it is when both training and sampling have work.

Work comes in units: a training micro-batch, a sampling step. Sampling waits for one micro-batch at
most. After a micro-batch sampling gets its share of the time that the micro-batch took, counted in
whole steps, and then training goes on: it waits at most for that time and one step. A side that
has no work lends its turn and is owed nothing.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Turn: TypeAlias = Literal["train", "sample"]


class Interleave:
    def __init__(self, sampling_share: float) -> None:
        if not 0.0 < sampling_share < 1.0:
            raise ValueError(f"sampling_share must lie between 0 and 1, not {sampling_share}")
        self._ratio = sampling_share / (1.0 - sampling_share)
        self._owed = 0.0

    def next(self, *, training: bool, sampling: bool) -> Turn | None:
        """What to run now, given who has work."""
        if not (training and sampling):
            self._owed = 0.0
            return "train" if training else "sample" if sampling else None
        return "sample" if self._owed > 0.0 else "train"

    def spent(self, turn: Turn, seconds: float) -> None:
        """Note what the unit just run took."""
        if turn == "train":
            self._owed = seconds * self._ratio
        else:
            self._owed -= seconds
