"""What a `model` names: a served base model, or saved weights that this key may read.

The same rule as for samplers: own and published checkpoints, everything else does not exist. The
weights that answer are told by path and hash, never guessed from the name.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinkex.server.checkpoints.service import Checkpoints
from tinkex.server.checkpoints.turns import Turns
from tinkex.server.endpoints.errors import Unfit
from tinkex.server.engines.model_names import context_limit
from tinkex.server.engines.pool import Engines, Pool
from tinkex.server.refusals import NotFound
from tinkex.server.sampling.rides import ServedWeights
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.server.storage.folders import Folders
from tinkex.types.sampling import SampledWeights
from tinkex.types.tinker_path import EXTERNAL_WEIGHTS, SCHEME

_CHECKED = 4096


@dataclass(frozen=True, slots=True)
class Target:
    """Weights on the engines of a model."""

    name: str  # what the client called them
    pool: Pool  # the model's engines
    weights: ServedWeights  # what is loaded there
    made_by: SampledWeights  # where they come from, for the records
    run: str | None = None
    """The asking tenant's own run that made them, if it was one's."""
    context: int | None = None
    """The most tokens of prompt and answer, where the model's name says so."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers that name the weights, for clients that do not read bodies."""
        found = {"x-tinkex-weights": self.made_by.path or self.made_by.base_model}
        digest = self.made_by.digest
        return found if digest is None else {**found, "x-tinkex-weights-hash": digest}

    @property
    def told(self) -> dict[str, str | None]:
        """The same for the body."""
        weights = self.made_by
        return {"base_model": weights.base_model, "path": weights.path, "hash": weights.digest}


class Targets:
    """Finds targets. Saved weights are checked byte for byte when they are first asked for."""

    def __init__(self, engines: Engines, checkpoints: Checkpoints, folders: Folders) -> None:
        self._engines = engines
        self._checkpoints = checkpoints
        self._folders = folders
        self._checked: dict[tuple[str, str], None] = {}
        self._turns = Turns(1)

    async def find(self, tenant: str, name: str, bearer: str | None = None) -> Target:
        """Raises `NotFound` for what this key may not read and for what is not served."""
        if name.startswith(SCHEME):
            return await self._saved(tenant, name, bearer)
        pool = self.served(name)
        made_by, context = SampledWeights(pool.spec.name), context_limit(name)
        return Target(name, pool, ServedWeights(), made_by, context=context)

    def served(self, name: str) -> Pool:
        """The engines of a base model."""
        if self._engines.find(name) is None:
            known = ", ".join(self._engines.names())
            raise NotFound(
                f"model {name[:200]!r} is not served here; served are: {known}, and saved weights "
                f"by their path {SCHEME}…"
            )
        return self._engines.get(name)

    async def _saved(self, tenant: str, path: str, bearer: str | None) -> Target:
        row = await self._checkpoints.find(tenant, path, bearer)
        if row.kind == EXTERNAL_WEIGHTS:
            raise Unfit(f"{path} is an export for use elsewhere: it cannot be sampled", "model")
        pool = self.served(row.base_model)
        async with self._turns.of(tenant):  # it takes a thread, as long as the weights are large
            await self._check(row)
        weights = ServedWeights(row.folder, self._folders, row.digest or "")
        made_by = SampledWeights(pool.spec.name, row.path, row.digest or None)
        own = row.model_id if row.tenant == tenant else None
        return Target(path, pool, weights, made_by, own, context_limit(row.base_model))

    async def _check(self, row: CheckpointRow) -> None:
        key = row.folder, row.digest
        if key not in self._checked:
            await self._checkpoints.check(row)
            if len(self._checked) >= _CHECKED:
                self._checked.pop(next(iter(self._checked)))
            self._checked[key] = None
