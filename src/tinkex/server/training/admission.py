"""Admission to an engine's memory: which runs are resident, and which leave when others wait.

A run takes its place before its state is loaded and gives it back only when the engine has dropped
it, so there are never more runs than places. When none is left, these leave first, each after its
current work:

1. runs that have been idle for a while, the longest idle first;
2. other idle runs, of the tenant with the most places if it has more than the one who waits,
   otherwise of the waiting tenant itself;
3. busy runs that had their turn, chosen in the same way. So a run that is never idle blocks nobody,
   and a tenant with many places takes none from one with few.

A run that could not be dropped is passed over for a while, so it keeps nobody waiting.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tinkex.engine.messages import Ready
from tinkex.server.engines.residence import Residence
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run

LEAVING_AT_ONCE = 8
"""Each is written to disk first; more at once would only wait for the disk."""
_LONG_IDLE_S = 30.0


class Room(NamedTuple):
    """How many runs an engine takes, and where that is bounded, how many bytes: `rank_bytes` for
    each rank of a run. One run always fits."""

    runs: int
    total_bytes: float = math.inf
    rank_bytes: int = 0

    @classmethod
    def of(cls, runs: int, facts: Ready | None) -> Room:
        if facts is None or facts.run_room is None:
            return cls(runs)
        return cls(runs, facts.run_room, facts.rank_bytes)

    def size(self, run: Run) -> int:
        return (run.row.rank or 0) * self.rank_bytes


class Places:
    """The places in one engine's memory, in one of its lives."""

    def __init__(self, runs: Iterable[Run], where: Residence, room: Room, turn_s: float) -> None:
        self._holders = [run for run in runs if run.place == where]
        self._where, self._room, self._turn_s = where, room, turn_s
        self._counts = Counter(run.tenant for run in self._holders if not run.is_leaving)

    @property
    def taken(self) -> int:
        return len(self._holders)

    def fits(self, run: Run) -> bool:
        """Whether there is a place for this one now."""
        return self._left(self._holders).takes(self._room.size(run))

    def make_room(self, waiting: Sequence[Run], now: float) -> float | None:
        """Ask as many runs to leave as those that wait need, and no more. Returns when to look
        again if too few could."""
        left, leaving = self._left([run for run in self._holders if not run.is_leaving]), 0
        for run in waiting:
            while not left.takes(self._room.size(run)):
                leaver = self._leaver(run.tenant, now) if leaving < LEAVING_AT_ONCE else None
                if leaver is None:
                    return self._next_chance(now) if leaving < LEAVING_AT_ONCE else None
                leaver.ask_to_leave()
                leaving += 1
                self._counts[leaver.tenant] -= 1
                left = left.with_one_less(self._room.size(leaver))
            left = left.with_one_more(self._room.size(run))
            self._counts[run.tenant] += 1
        return None

    def _left(self, holders: Sequence[Run]) -> _Left:
        taken = sum(map(self._room.size, holders))
        return _Left(self._room, len(holders), taken)

    def _leaver(self, tenant: str, now: float) -> Run | None:
        """The run that leaves for a run of `tenant`."""
        able = [run for run in self._settled() if run.stays_until <= now]
        idle = [run for run in able if not run.active and not _has_work(run, now)]
        old = [run for run in idle if now - run.used_at >= _LONG_IDLE_S]
        recent = old or self._of_largest(idle, tenant)
        if recent:
            return min(recent, key=lambda run: run.used_at)
        busy = [run for run in able if now - run.settled_at >= self._turn_s]
        tired = self._of_largest(busy, tenant)
        return min(tired, key=lambda run: run.settled_at, default=None)

    def _of_largest(self, runs: list[Run], tenant: str) -> list[Run]:
        """The runs of the tenant with the most places, if it has more than `tenant`, else
        `tenant`'s own: a tenant with many places gets no more from those with few."""
        mine = [run for run in runs if run.tenant == tenant]
        largest = max(runs, key=lambda run: self._counts[run.tenant], default=None)
        if largest is None or self._counts[largest.tenant] <= self._counts[tenant]:
            return mine
        return [run for run in runs if run.tenant == largest.tenant]

    def _settled(self) -> list[Run]:
        return [run for run in self._holders if run.residence == self._where and not run.is_leaving]

    def _next_chance(self, now: float) -> float | None:
        settled = self._settled()
        chances = [run.stays_until for run in settled]
        chances += [run.settled_at + self._turn_s for run in settled]
        chances += [run.used_at + _LONG_IDLE_S for run in settled]
        return min((chance for chance in chances if chance > now), default=None)


class _Left(NamedTuple):
    """What remains of a room after so many runs of so many bytes."""

    room: Room
    runs: int
    taken: int

    def takes(self, size: int) -> bool:
        fits = self.taken + size <= self.room.total_bytes
        return self.runs == 0 or (self.runs < self.room.runs and fits)

    def with_one_less(self, size: int) -> _Left:
        return _Left(self.room, self.runs - 1, self.taken - size)

    def with_one_more(self, size: int) -> _Left:
        return _Left(self.room, self.runs + 1, self.taken + size)


def _has_work(run: Run, now: float) -> bool:
    return isinstance(run.log.next(now), Entry)
