"""Viewers: a tenant sees its own, an operator everything."""

from __future__ import annotations

from typing import NamedTuple


class Viewer(NamedTuple):
    """Someone who looks at the dashboard, as the tenant of a key."""

    tenant: str
    operator: bool = False

    @property
    def scope(self) -> str | None:
        """Whose things are shown; None means everybody's."""
        return None if self.operator else self.tenant

    def sees(self, tenant: str | None) -> bool:
        """Whether something of a tenant's, or without an owner, is visible to this viewer."""
        return self.operator or tenant is None or tenant == self.tenant
