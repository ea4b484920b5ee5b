"""Admission of samples: bounds on their number and size, per tenant and in total.

Of the memory for waiting prompts, and for results that were not fetched yet, a tenant gets half of
what the others leave. So a tenant that fills its share stops nobody else from sampling.
"""

from __future__ import annotations

from tinkex.server.budgets import ByteBudget
from tinkex.server.refusals import Busy
from tinkex.server.settings import Settings


class Admission:
    """Counts what is in flight and which results were not fetched yet."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._per_tenant: dict[str, int] = {}
        limits = settings.limits
        self._waiting = ByteBudget(limits.sample_bytes, "the waiting prompts")
        self._results = ByteBudget(limits.sample_result_bytes, "the results nobody fetched")

    def __len__(self) -> int:
        """Samples in flight."""
        return sum(self._per_tenant.values())

    def of(self, tenant: str) -> int:
        """A tenant's samples in flight."""
        return self._per_tenant.get(tenant, 0)

    @property
    def tenants(self) -> set[str]:
        """Tenants with samples in flight."""
        return set(self._per_tenant)

    def check(self, tenant: str, size: int) -> None:
        """Raises `Busy` if there is no room for a sample whose body has `size` bytes."""
        limits = self._settings.limits_of(tenant)
        if self._per_tenant.get(tenant, 0) >= limits.samples_per_tenant:
            raise Busy(f"{limits.samples_per_tenant} samples of this key are in flight", 1.0)
        if len(self) >= limits.samples:
            raise Busy(f"{limits.samples} samples are in flight on this server", 1.0)
        if not self._waiting.has_room(tenant, size):
            raise Busy("the waiting prompts fill this key's part of the memory for them", 1.0)
        if self.is_full(tenant):
            raise Busy("the results nobody fetched fill this key's part of the memory", 1.0)

    def is_full(self, tenant: str) -> bool:
        """Whether a tenant's results fill its share."""
        return not self._results.has_room(tenant, 0)

    def begin(self, tenant: str, size: int) -> None:
        self._waiting.take(tenant, size)
        self._per_tenant[tenant] = self._per_tenant.get(tenant, 0) + 1

    def end(self, tenant: str, size: int, result_bytes: int) -> None:
        self._waiting.give_back(tenant, size)
        self._results.take(tenant, result_bytes)
        self._per_tenant[tenant] -= 1
        if not self._per_tenant[tenant]:
            del self._per_tenant[tenant]

    def gather(self, tenant: str, size: int) -> None:
        """Count something kept for a client that is slow to take it."""
        self._results.take(tenant, size)

    def forget(self, tenant: str, result_bytes: int) -> None:
        """Count something of a result as dropped."""
        self._results.give_back(tenant, result_bytes)
