"""Whose turn it is: the tenant that has been served the fewest tokens for its weight goes first.

A tenant that comes back after a pause starts level with the others: it neither pays for what it
took when nobody else wanted it nor collects what it left. Knows nothing of what is scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

_REMEMBERED = 10_000


class Fairness:
    """Tokens served per tenant, on a common scale."""

    def __init__(self, weight_of: Callable[[str], float] = lambda _: 1) -> None:
        self._weight_of = weight_of
        self._served: dict[str, float] = {}
        self._waiting: dict[str, set[str]] = {}

    def waiting(self, tenants: Iterable[str], at: str = "") -> list[str]:
        """The tenants with work now in one of the places where they are served, the one to serve
        first in front. Who waits in another place was not away."""
        now, before = set(tenants), self._waiting.pop(at, set())
        elsewhere: set[str] = set().union(*self._waiting.values())
        present = (before & now) | elsewhere
        level = min((self._served[tenant] for tenant in present), default=None)
        for tenant in now - before - elsewhere:
            floor = self._floor() if level is None else level
            self._served[tenant] = max(self._served.get(tenant, floor), floor)
        self._waiting[at] = now
        if len(self._served) > _REMEMBERED:
            self._served = {tenant: self._served[tenant] for tenant in now | elsewhere}
        return sorted(now, key=lambda tenant: (self._served[tenant], tenant))

    def charge(self, tenant: str, tokens: int) -> None:
        self._served[tenant] = self._served.get(tenant, 0.0) + self._cost(tenant, tokens)

    def _floor(self) -> float:
        return max(self._served.values(), default=0.0)

    def _cost(self, tenant: str, tokens: int) -> float:
        return max(tokens, 1) / self._weight_of(tenant)
