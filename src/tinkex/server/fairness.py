"""Fairness: the tenant that was served the fewest tokens, relative to its weight, goes first.

A tenant that comes back after a pause starts level with the others: it neither pays for what it
used while others were idle nor is compensated for its pause. Knows nothing of what is scheduled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

_REMEMBERED = 10_000
_PASSED_OVER = 16
"""Turns of higher classes after which a waiting lower class gets one."""


class Fairness:
    """Tokens served per tenant, on a common scale. Classes are numbered, 0 the highest. A lower
    class has its turn when no higher one waits, and now and then, so that it does not starve."""

    def __init__(
        self,
        weight_of: Callable[[str], float] = lambda _: 1,
        class_of: Callable[[str], int] = lambda _: 0,
    ) -> None:
        self._weight_of, self._class_of = weight_of, class_of
        self._passed_over: Counter[int] = Counter()
        self._served: dict[str, float] = {}
        self._waiting: dict[str, set[str]] = {}

    def waiting(self, tenants: Iterable[str], at: str = "") -> list[str]:
        """The tenants with work at one of the places that serve them, the next one first. A tenant
        that waits at another place was not idle."""
        now, before = set(tenants), self._waiting.pop(at, set())
        elsewhere: set[str] = set().union(*self._waiting.values())
        present = (before & now) | elsewhere
        for tenant in now - before - elsewhere:
            floor = self._level(present, self._class_of(tenant))
            self._served[tenant] = max(self._served.get(tenant, floor), floor)
        self._waiting[at] = now
        if len(self._served) > _REMEMBERED:
            self._served = {tenant: self._served[tenant] for tenant in now | elsewhere}
        return sorted(now, key=self._place)

    def charge(self, tenant: str, tokens: int) -> None:
        own = self._class_of(tenant)
        waiting: set[str] = set().union(*self._waiting.values())
        self._passed_over.update({self._class_of(each) for each in waiting} - set(range(own + 1)))
        self._passed_over.pop(own, None)
        self._served[tenant] = self._served.get(tenant, 0.0) + self._cost(tenant, tokens)

    def _place(self, tenant: str) -> tuple[bool, int, float, str]:
        own = self._class_of(tenant)
        return self._passed_over[own] < _PASSED_OVER, own, self._served[tenant], tenant

    def _level(self, present: set[str], number: int) -> float:
        """Where a new tenant of a class starts: level with the one that had the least of it."""
        least = [self._served[each] for each in present if self._class_of(each) == number]
        if least:
            return min(least)
        most = [had for each, had in self._served.items() if self._class_of(each) == number]
        return max(most, default=0.0)

    def _cost(self, tenant: str, tokens: int) -> float:
        return max(tokens, 1) / self._weight_of(tenant)
