"""The numbers of a sampler's requests, apart from those of every other process that uses it."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from tinkex.client.api import call_policies
from tinkex.client.sampling.sharing import new_clone_id
from tinkex.types import JoinSamplingSessionRequest, JoinSamplingSessionResponse
from tinkex.wire import limits, routes
from tinkex.wire.json import encode_request

if TYPE_CHECKING:
    from tinkex.client.session.holder import InternalClientHolder


class Numbering:
    """A clone learns which one it is with its first request; the original is number 0."""

    def __init__(
        self, holder: InternalClientHolder, sampling_session_id: str, *, is_clone: bool
    ) -> None:
        self.clone_id: int | None = None if is_clone else 0
        self._holder = holder
        self._sampling_session_id = sampling_session_id
        self._numbers = itertools.count(limits.FIRST_SAMPLING_SEQ_ID)
        self._joining = asyncio.Lock()

    async def next(self) -> int:
        if self.clone_id is None:
            async with self._joining:
                if self.clone_id is None:
                    self.clone_id = await self._join()
                    self._numbers = itertools.count(self.clone_id * limits.SAMPLER_CLONE_STRIDE)
        return next(self._numbers)

    async def _join(self) -> int:
        if not self._holder.flags.sample_join_sampling_session:
            return new_clone_id()
        request = JoinSamplingSessionRequest(sampling_session_id=self._sampling_session_id)
        answer = await self._holder.api.post(
            routes.JOIN_SAMPLING_SESSION,
            encode_request(request),
            JoinSamplingSessionResponse,
            call_policies.JOIN,
        )
        return answer.client_counter
