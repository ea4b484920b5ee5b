"""Routes of sampled sequences, kept for training on them: which experts each token was sent to.

The protocol has no field for them. So a sequence is recognised by its tokens: prompt and sample
without the last token, which is what training data consists of. If the same tokens were sampled
twice, the later sample counts. Kept in memory only: after a restart, or without room, a sequence is
routed as if it had never been sampled. A tenant finds only its own sequences, and only those of the
model it trains, because experts of another model are different ones.

Scoring a sequence, as for a penalty against a reference model, sends its tokens through experts
too. Such routes never replace those of the sampler that drew it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages import Routes, Sample, Sequence


class _Kept(NamedTuple):
    routes: Routes
    drawn: bool  # not merely scored


class KeptRoutes:
    """Routes, bounded in bytes per tenant and in total. The oldest are dropped first; if the total
    is too large, those of the largest tenant."""

    def __init__(self, tenant_bytes: int, total_bytes: int) -> None:
        self._tenant_bytes, self._total_bytes = tenant_bytes, total_bytes
        self._kept: dict[str, OrderedDict[bytes, _Kept]] = {}
        self._sizes: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        return sum(self._sizes.values())

    def keep(self, tenant: str, model: str, request: Sample, sequences: Iterable[Sequence]) -> None:
        """Keep those of a request's samples that have routes."""
        drawn = not _only_scores(request)
        for sequence in sequences:
            routes = sequence.routes
            if routes is not None and routes.nbytes <= self._tenant_bytes:
                tokens = np.concatenate([request.prompt, sequence.tokens])[: len(routes)]
                self._put(tenant, digest(model, tokens), _Kept(routes, drawn))

    def find(self, tenant: str, digests: Iterable[bytes]) -> Routes | None:
        """The first that is kept under one of these."""
        kept: Mapping[bytes, _Kept] = self._kept.get(tenant, {})
        return next((kept[each].routes for each in digests if each in kept), None)

    def _put(self, tenant: str, key: bytes, new: _Kept) -> None:
        kept = self._kept.setdefault(tenant, OrderedDict())
        before = kept.get(key)
        if before is not None and before.drawn and not new.drawn:
            return
        kept[key] = new
        kept.move_to_end(key)
        self._sizes[tenant] = self._sizes.get(tenant, 0) + new.routes.nbytes
        self._sizes[tenant] -= 0 if before is None else before.routes.nbytes
        while self._sizes[tenant] > self._tenant_bytes:
            self._drop_oldest(tenant)
        while self.nbytes > self._total_bytes:
            self._drop_oldest(max(self._sizes, key=self._sizes.__getitem__))

    def _drop_oldest(self, tenant: str) -> None:
        _, oldest = self._kept[tenant].popitem(last=False)
        self._sizes[tenant] -= oldest.routes.nbytes
        if not self._kept[tenant]:
            del self._kept[tenant], self._sizes[tenant]


def _only_scores(request: Sample) -> bool:
    """Whether it only scores its prompt; one token is the least that can be drawn."""
    told = request.prompt_logprobs or request.topk_prompt_logprobs
    asks = bool(told) or request.target_prompt_logprobs is not None
    return asks and request.params.max_tokens == 1


def digest(model: str, tokens: NDArray[np.integer]) -> bytes:
    """A key for a sequence of tokens in one model."""
    found = hashlib.blake2b(model.encode() + b"\0", digest_size=16)
    found.update(tokens.astype(np.int32).tobytes())
    return found.digest()
