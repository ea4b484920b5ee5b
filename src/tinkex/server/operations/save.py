"""save_weights, save_weights_for_sampler, save_weights_external: a run's weights get a name.

Without a name, weights for a sampler become a sampling session at once and no checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tinkex.engine.messages import Result, SaveResult, SaveRun
from tinkex.server.checkpoints.rules import Save
from tinkex.server.checkpoints.service import Checkpoints
from tinkex.server.clock import Clock
from tinkex.server.operations import address
from tinkex.server.operations.base import Conclusion, Prepared
from tinkex.server.operations.log import Entry
from tinkex.server.operations.runs import Run
from tinkex.server.protocol.fields import Fields
from tinkex.server.protocol.outcomes import success
from tinkex.server.sampling.unnamed_weights import UnnamedWeights
from tinkex.server.storage.database import samplers as samplers_table
from tinkex.server.storage.database.checkpoints import Kind
from tinkex.server.storage.database.samplers import SamplerRow
from tinkex.server.storage.folders import Folders

FOLDER_KINDS: dict[str, Kind] = {
    "save_weights": "weights",
    "save_weights_for_sampler": "sampler_weights",
    "save_weights_external": "external_weights",
}
_SEQ_LIMIT = 2**63 - 1

Conclude: TypeAlias = Callable[[Result], Awaitable[Conclusion]]


@dataclass(frozen=True, slots=True)
class Saving:
    """What saving needs around it."""

    checkpoints: Checkpoints
    folders: Folders
    unnamed: UnnamedWeights
    clock: Clock

    def prepare(self, run: Run, entry: Entry, body: bytes) -> Prepared:
        asked = read(entry.kind, Fields.parse(body))
        if isinstance(asked, int):
            return self._sampler(run, entry, asked)
        return self._checkpoint(run, entry, asked)

    def _checkpoint(self, run: Run, entry: Entry, asked: Asked) -> Prepared:
        save = Save(run=run.row, kind=FOLDER_KINDS[entry.kind], **asdict(asked))
        self.checkpoints.admit(save)
        draft = self.folders.begin()

        async def conclude(result: Result) -> Conclusion:
            assert isinstance(result, SaveResult)
            row = await self.checkpoints.seal(save, draft, result.step)
            values: dict[str, Any] = {"path": row.path, "type": entry.kind}
            if entry.kind == "save_weights_external":
                values = {"path": row.path, "size_bytes": row.size_bytes}
            record = (lambda db: self.checkpoints.record(db, save, row),)
            return Conclusion(success(values), record, path=row.path)

        return self._prepared(run, entry, draft, entry.kind == "save_weights", conclude)

    def _sampler(self, run: Run, entry: Entry, number: int) -> Prepared:
        draft = self.folders.begin()
        sampler_id = f"{run.row.session_id}:sample:{number}"

        async def conclude(_: Result) -> Conclusion:
            await self.unnamed.admit(run.tenant)
            folder = await asyncio.to_thread(
                self.checkpoints.seal_unnamed, draft, run.row.base_model
            )
            row = SamplerRow(
                sampler_id=sampler_id,
                session_id=run.row.session_id,
                tenant=run.tenant,
                base_model=run.row.base_model,
                created_at=self.clock.now(),
                folder=folder,
            )
            values = {"sampling_session_id": sampler_id, "type": entry.kind}
            return Conclusion(success(values), (lambda db: samplers_table.insert(db, row),))

        return self._prepared(run, entry, draft, False, conclude)

    def _prepared(
        self, run: Run, entry: Entry, draft: Path, training: bool, conclude: Conclude
    ) -> Prepared:
        command = SaveRun(entry.request_id, run.model_id, str(draft), training)
        number = run.gaps.save() if entry.kind == "save_weights_for_sampler" else None

        async def noted(result: Result) -> Conclusion:
            conclusion = await conclude(result)
            if number is not None:
                run.gaps.saved(number)
            return conclusion

        return Prepared((command,), noted, abandon=lambda: self.folders.abandon(draft))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body says about the checkpoint it asks for."""

    name: str
    ttl_seconds: int | None
    overwrite: bool
    user_metadata: dict[str, Any] | None
    recipients: tuple[str, ...]


def read(kind: str, fields: Fields) -> Asked | int:
    """A checkpoint to save or, for a sampler without a name, the number of its session."""
    address.read(fields)
    if kind == "save_weights_for_sampler" and not fields.has("path"):
        return _sampler_number(fields)
    asked = Asked(
        name=fields.text("path"),
        ttl_seconds=fields.optional_integer("ttl_seconds", low=-_SEQ_LIMIT, high=_SEQ_LIMIT),
        overwrite=kind == "save_weights" and fields.flag("overwrite", False),
        user_metadata=fields.mapping("user_metadata"),
        recipients=_recipients(fields) if kind == "save_weights_external" else (),
    )
    fields.finish()
    return asked


def _recipients(fields: Fields) -> tuple[str, ...]:
    return tuple(fields.texts("age_encryption_recipients", limit=10) or ())


def _sampler_number(fields: Fields) -> int:
    number = fields.integer("sampling_session_seq_id", low=0, high=_SEQ_LIMIT)
    fields.optional_integer("ttl_seconds", low=0, high=_SEQ_LIMIT)
    fields.mapping("user_metadata")
    fields.finish()
    return number
