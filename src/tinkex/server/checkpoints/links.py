"""Signed links to what a tenant may fetch without showing its key: files, archives, traces.

Knows the paths of those routes and how long a link lives. `origin` is how the asking client reaches
this server, so that a link works from where it was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinkex.server.checkpoints.signing import Signer
from tinkex.server.clock import Clock
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.wire.routes import ARCHIVES, FILES, TRACES

LINK_LIFETIME_S = 3600


class Links:
    """Makes links for a tenant that may read what they lead to."""

    def __init__(self, signer: Signer, clock: Clock) -> None:
        self._signer = signer
        self._clock = clock

    def file(self, origin: str, tenant: str, row: CheckpointRow, name: str) -> str:
        return self._link(origin, tenant, f"{FILES}/{row.model_id}/{row.kind}/{row.name}/{name}")

    def archive(self, origin: str, tenant: str, row: CheckpointRow) -> str:
        return self._link(origin, tenant, f"{ARCHIVES}/{row.model_id}/{row.kind}/{row.name}.tar")

    def trace(self, origin: str, tenant: str, session_id: str) -> str:
        return self._link(origin, tenant, f"{TRACES}/{session_id}.json")

    def check(self, path: str, query: Mapping[str, str]) -> str:
        """The tenant a link to `path` was made for; raises `SignatureRefused`."""
        return self._signer.check(path, query, self._clock.now())

    def _link(self, origin: str, tenant: str, path: str) -> str:
        expires = int(self._clock.now()) + LINK_LIFETIME_S
        return origin + self._signer.link(path, tenant, expires)
