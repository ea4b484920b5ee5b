"""Fairness between lanes: whose prompt is computed next, and how much of the time prompts take.

A lane is the tenant that a request is for. The lane whose prompts were served the fewest tokens
goes first; among equals, the one not served for longest. A lane that comes back after a pause
starts level with the others: it neither pays for what it used while others were idle nor is
compensated for its pause.

A long prompt makes a step long for every branch whose next token is in it. The time that a lane's
prompts took while others drew tokens is owed to those: as long a time of steps without its prompts.
Knows nothing of pages or tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

_REMEMBERED = 10_000
_UNTIMED = 64


class Shares:
    """Prompt tokens served per lane, on a common scale."""

    def __init__(self) -> None:
        self._served: dict[str, tuple[int, int]] = {}
        self._waiting: set[str] = set()
        self._turn = 0

    def waiting(self, lanes: Iterable[str]) -> None:
        """Note which lanes have prompts to compute now."""
        now = set(lanes)
        for lane in now - self._waiting:
            level = self._level(self._waiting & now)
            tokens, turn = self._served.get(lane, (level, 0))
            self._served[lane] = max(tokens, level), turn
        self._waiting = now
        if len(self._served) > _REMEMBERED:
            self._served = {lane: self._served[lane] for lane in now}

    def first(self, lanes: Iterable[str]) -> str:
        """Which of these waiting lanes goes first."""
        return min(lanes, key=lambda lane: (*self._served[lane], lane))

    def _level(self, staying: set[str]) -> int:
        if staying:
            return min(self._served[lane][0] for lane in staying)
        return max((tokens for tokens, _ in self._served.values()), default=0)

    def charge(self, lane: str, tokens: int) -> None:
        self._turn += 1
        self._served[lane] = self._served[lane][0] + tokens, self._turn


class Pacing:
    """The time in seconds that lanes whose prompts delayed others owe to those."""

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}
        self._steps: deque[dict[str, float]] = deque(maxlen=_UNTIMED)

    def holds_up(self, lane: str, drawing: set[str]) -> bool:
        """Whether a prompt of this lane has to wait for the lanes that draw tokens."""
        return lane in self._owed and bool(drawing - {lane})

    def planned(self, prompts: Mapping[str, int], drawing: set[str]) -> None:
        """Record the next step: each lane's prompt tokens, and which lanes draw tokens in it."""
        total = sum(prompts.values())
        parts = {lane: tokens / total for lane, tokens in prompts.items()}
        self._steps.append(
            {lane: part if drawing - {lane} else 0.0 for lane, part in parts.items()}
        )

    def took(self, seconds: float) -> None:
        """Record how long the oldest untimed step took."""
        parts = self._steps.popleft() if self._steps else {}
        for lane, part in parts.items():
            self._owed[lane] = self._owed.get(lane, 0.0) + seconds * part
        for lane in self._owed.keys() - parts.keys():
            self._owed[lane] -= seconds
        self._owed = {lane: owed for lane, owed in self._owed.items() if owed > 0.0}
