"""Time sharing: whose turn it is when both training and sampling have work.

Work comes in units: a training command or micro-batch, a sampling step.

- The time of a unit of training is owed to sampling, by sampling's share. Sampling runs until it
  has had that; what its last step took beyond it is owed to training.
- A client that awaits each result leaves nothing queued for a moment. So what sampling is owed
  remains while training has no work, less what sampling uses meanwhile, and it outlasts one unit
  of training without any sampling.
- A side without work for longer lends its turns. When it comes back it is owed no more than the
  unit it then waits for.

Units may end later than they return: on a GPU they are only queued. `spent` reports what the oldest
one took once that is known; until then sampling goes after training.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias

Turn: TypeAlias = Literal["train", "sample"]


class Interleave:
    def __init__(self, sampling_share: float) -> None:
        if not 0.0 < sampling_share < 1.0:
            raise ValueError(f"sampling_share must lie between 0 and 1, not {sampling_share}")
        self._ratio = sampling_share / (1.0 - sampling_share)
        self._owed = 0.0  # seconds owed to sampling; below 0 they are owed to training
        self._sampled = False  # whether sampling had work when the last unit was chosen
        self._under_way: deque[tuple[Turn, bool]] = deque()

    def next(self, *, training: bool, sampling: bool) -> Turn | None:
        """What to run now, given who has work."""
        turn = self._choose(training, sampling)
        if turn is not None:
            self._under_way.append((turn, training and sampling))
        return turn

    def spent(self, seconds: float) -> Turn:
        """Record how long the oldest unaccounted unit took; returns whose it was."""
        turn, both = self._under_way.popleft()
        if turn == "train":
            self._owed += seconds * self._ratio
        elif both:
            self._owed -= seconds
        else:
            self._owed = max(self._owed - seconds, min(self._owed, 0.0))
        return turn

    def _choose(self, training: bool, sampling: bool) -> Turn | None:
        lapsed, self._sampled = not sampling and not self._sampled, sampling
        if lapsed:
            self._owed = min(self._owed, 0.0)
        if not sampling:
            return "train" if training else None
        if not training:
            return "sample"
        unknown = any(turn == "train" for turn, _ in self._under_way)
        return "sample" if unknown or self._owed > 0.0 else "train"
