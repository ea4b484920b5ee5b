"""Which weights a sampler serves, as engines are given them and as clients are told."""

from __future__ import annotations

from tinkex.server.engines.unwritten_weights import UnwrittenWeights
from tinkex.server.sampling.rides import ServedWeights
from tinkex.server.storage.database.samplers import SamplerRow
from tinkex.server.storage.folders import Folders
from tinkex.types.sampling import SampledWeights

_NAMED = 4096


class SamplerWeights:
    """A sampler's weights. They never change, so a lookup stays valid; but they may have no hash
    yet."""

    def __init__(self, folders: Folders, unwritten: UnwrittenWeights) -> None:
        self.unwritten = unwritten
        self._folders = folders
        self._named: dict[str, SampledWeights] = {}

    def served(self, sampler: SamplerRow) -> ServedWeights:
        if sampler.folder is None:
            return ServedWeights()
        return ServedWeights(sampler.folder, self._folders)

    async def named(self, sampler: SamplerRow) -> SampledWeights:
        known = self._named.get(sampler.sampler_id)
        if sampler.folder is not None and sampler.folder in self.unwritten:
            return SampledWeights(sampler.base_model, sampler.model_path)
        if known is None:
            digest = None
            if sampler.folder is not None:
                digest = await self._folders.digest(sampler.folder)
            known = SampledWeights(sampler.base_model, sampler.model_path, digest)
            if len(self._named) >= _NAMED:
                self._named.pop(next(iter(self._named)))
            self._named[sampler.sampler_id] = known
        return known
