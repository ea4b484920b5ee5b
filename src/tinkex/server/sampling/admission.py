"""Room for samples: how many and how large, per tenant and in all; too much is told to wait."""

from __future__ import annotations

from tinkex.server.refusals import Busy
from tinkex.server.settings import Settings


class Admission:
    """Counts what is in flight and what lies here unfetched."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._per_tenant: dict[str, int] = {}
        self._waiting_bytes = 0
        self._result_bytes = 0

    def __len__(self) -> int:
        """Samples in flight."""
        return sum(self._per_tenant.values())

    def of(self, tenant: str) -> int:
        """A tenant's samples in flight."""
        return self._per_tenant.get(tenant, 0)

    @property
    def tenants(self) -> set[str]:
        """Whose samples are in flight."""
        return set(self._per_tenant)

    def check(self, tenant: str, size: int) -> None:
        """Raises `Busy` where a sample whose body has `size` bytes finds no room."""
        limits = self._settings.limits_of(tenant)
        if self._per_tenant.get(tenant, 0) >= limits.samples_per_tenant:
            raise Busy(f"{limits.samples_per_tenant} samples of this key are in flight", 1.0)
        if len(self) >= limits.samples:
            raise Busy(f"{limits.samples} samples are in flight on this server", 1.0)
        if self._waiting_bytes + size > limits.sample_bytes:
            raise Busy("the waiting prompts fill the memory set aside for them", 1.0)
        if self._result_bytes > limits.sample_result_bytes:
            raise Busy("the results nobody fetched fill the memory set aside for them", 1.0)

    def begin(self, tenant: str, size: int) -> None:
        self._waiting_bytes += size
        self._per_tenant[tenant] = self._per_tenant.get(tenant, 0) + 1

    def end(self, tenant: str, size: int, result_bytes: int) -> None:
        self._waiting_bytes -= size
        self._result_bytes += result_bytes
        self._per_tenant[tenant] -= 1
        if not self._per_tenant[tenant]:
            del self._per_tenant[tenant]

    def forget(self, result_bytes: int) -> None:
        """A result is kept no longer."""
        self._result_bytes -= result_bytes
