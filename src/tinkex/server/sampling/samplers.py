"""Samplers: handles on immutable weights, of a checkpoint, a base model, or a save."""

from __future__ import annotations

from collections.abc import Iterable

from tinkex.server.checkpoints.service import Checkpoints
from tinkex.server.clock import Clock
from tinkex.server.engines.pool import Engines, Pool
from tinkex.server.engines.unwritten_weights import UnwrittenWeights
from tinkex.server.refusals import NotFound, Refusal
from tinkex.server.sampling.accepted_numbers import SampleWindows
from tinkex.server.sampling.sampler_weights import SamplerWeights
from tinkex.server.storage.database import samplers as table
from tinkex.server.storage.database.samplers import SamplerRow
from tinkex.server.storage.home_storage import HomeStorage
from tinkex.types.tinker_path import EXTERNAL_WEIGHTS

_CACHED = 4096


class Samplers:
    """All samplers, the recently used ones in memory."""

    def __init__(
        self,
        storage: HomeStorage,
        checkpoints: Checkpoints,
        engines: Engines,
        unwritten: UnwrittenWeights,
        clock: Clock,
    ) -> None:
        self.windows = SampleWindows(storage.store)
        self.weights = SamplerWeights(storage.weights, unwritten)
        self._store = storage.store
        self._checkpoints = checkpoints
        self._engines = engines
        self._clock = clock
        self._recent: dict[str, SamplerRow] = {}
        self._used: dict[str, float] = {}
        self._forgotten = 0

    async def create(
        self,
        tenant: str,
        session_id: str,
        number: int,
        model_path: str | None,
        base_model: str | None,
        bearer: str | None = None,
    ) -> str:
        """A sampler of a checkpoint or a base model; the same number again gives the same one. The
        checkpoint may belong to `bearer`, if the client has shown a right to it."""
        sampler_id = f"{session_id}:sample:{number}"
        known = await self._store.read(table.get, sampler_id)
        row = await self._row(tenant, session_id, sampler_id, model_path, base_model, bearer)
        if known is None:
            stored = await self._store.write(table.insert_once, row)
        else:
            stored = known
        if (stored.model_path, stored.base_model) != (row.model_path, row.base_model):
            raise Refusal(f"sampling_session_seq_id {number} was already used for other weights")
        return sampler_id

    async def find(self, sampler_id: str) -> SamplerRow | None:
        row = self._recent.get(sampler_id)
        if row is None:
            before = self._forgotten
            row = await self._store.read(table.get, sampler_id)
            if row is not None and before == self._forgotten:
                self._keep(row)
        return row

    def _keep(self, row: SamplerRow) -> None:
        if len(self._recent) >= _CACHED:
            self._recent.pop(next(iter(self._recent)))
        self._recent[row.sampler_id] = row

    async def owned(self, tenant: str, sampler_id: str) -> SamplerRow:
        row = await self.find(sampler_id)
        if row is None or row.tenant != tenant:
            raise NotFound(
                f"no sampler {sampler_id[:200]!r}: it was never made, or it had no name and was "
                "let go to make room; weights saved with a name stay"
            )
        self._used[sampler_id] = self._clock.now()
        return row

    def pool(self, sampler: SamplerRow) -> Pool:
        """The pool that serves its base model."""
        return self._engines.get(sampler.base_model)

    def used_at(self, sampler_id: str) -> float | None:
        """When a sampler was last used, in this life of the server."""
        return self._used.get(sampler_id)

    def forget(self, sampler_ids: Iterable[str]) -> None:
        """These are deleted; rows of them being read meanwhile are not kept."""
        self._forgotten += 1
        for sampler_id in sampler_ids:
            self._recent.pop(sampler_id, None)
            self._used.pop(sampler_id, None)

    async def join(self, tenant: str, sampler_id: str) -> int:
        """A number for one more client of a sampler; never 0, which is the original's."""
        await self.owned(tenant, sampler_id)
        return await self._store.write(table.next_clone, sampler_id)

    async def _row(
        self,
        tenant: str,
        session_id: str,
        sampler_id: str,
        model_path: str | None,
        base_model: str | None,
        bearer: str | None,
    ) -> SamplerRow:
        if model_path is None:
            if base_model is None:
                raise Refusal("give model_path or base_model")
            self._engines.get(base_model)
            return SamplerRow(sampler_id, session_id, tenant, base_model, self._clock.now())
        checkpoint = await self._checkpoints.find(tenant, model_path, bearer)
        if checkpoint.kind == EXTERNAL_WEIGHTS:
            raise Refusal(f"{model_path} is an export for use elsewhere: it cannot be sampled")
        served = self._engines.get(checkpoint.base_model)
        if base_model is not None and self._engines.get(base_model) is not served:
            raise Refusal(
                f"base_model is {base_model!r}, the checkpoint's {checkpoint.base_model!r}"
            )
        await self._checkpoints.check(checkpoint)
        return SamplerRow(
            sampler_id=sampler_id,
            session_id=session_id,
            tenant=tenant,
            base_model=checkpoint.base_model,
            created_at=self._clock.now(),
            model_path=model_path,
            folder=checkpoint.folder,
            model_id=checkpoint.model_id if checkpoint.tenant == tenant else None,
        )
