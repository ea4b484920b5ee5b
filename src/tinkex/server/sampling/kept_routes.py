"""Routes of sampled sequences, kept for training on them: which experts each token was sent to.

The protocol has no field for them, so a sequence is known by its tokens: those of prompt and sample
but for the last, which is what data for training is made of. Of the same tokens sampled twice the
later counts. Memory only: after a restart, or when there is no room, a sequence is routed as if it
had never been sampled. A tenant finds its own sequences and no other's.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages import Routes, Sequence


class KeptRoutes:
    """At most so many bytes for each tenant and for all; the oldest go first, those of the tenant
    with the most where all together have too many."""

    def __init__(self, tenant_bytes: int, total_bytes: int) -> None:
        self._tenant_bytes, self._total_bytes = tenant_bytes, total_bytes
        self._kept: dict[str, OrderedDict[bytes, Routes]] = {}
        self._sizes: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        return sum(self._sizes.values())

    def keep(self, tenant: str, prompt: NDArray[np.integer], sequences: Iterable[Sequence]) -> None:
        """Those of a prompt's samples that have routes."""
        for sequence in sequences:
            routes = sequence.routes
            if routes is not None and routes.nbytes <= self._tenant_bytes:
                tokens = np.concatenate([prompt, sequence.tokens])[: len(routes)]
                self._put(tenant, digest(tokens), routes)

    def find(self, tenant: str, digests: Iterable[bytes]) -> Routes | None:
        """The first that is kept under one of these."""
        kept: Mapping[bytes, Routes] = self._kept.get(tenant, {})
        return next((kept[each] for each in digests if each in kept), None)

    def _put(self, tenant: str, key: bytes, routes: Routes) -> None:
        kept = self._kept.setdefault(tenant, OrderedDict())
        before = kept.pop(key, None)
        kept[key] = routes
        self._sizes[tenant] = self._sizes.get(tenant, 0) + routes.nbytes
        self._sizes[tenant] -= 0 if before is None else before.nbytes
        while self._sizes[tenant] > self._tenant_bytes:
            self._drop_oldest(tenant)
        while self.nbytes > self._total_bytes:
            self._drop_oldest(max(self._sizes, key=self._sizes.__getitem__))

    def _drop_oldest(self, tenant: str) -> None:
        _, routes = self._kept[tenant].popitem(last=False)
        self._sizes[tenant] -= routes.nbytes
        if not self._kept[tenant]:
            del self._kept[tenant], self._sizes[tenant]


def digest(tokens: NDArray[np.integer]) -> bytes:
    """Stands for a row of tokens."""
    return hashlib.blake2b(tokens.astype(np.int32).tobytes(), digest_size=16).digest()
