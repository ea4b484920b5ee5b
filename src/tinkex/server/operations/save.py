"""save_weights, save_weights_for_sampler, save_weights_external: a run's weights get a name.

Without a name, weights for a sampler become a sampling session at once and no checkpoint.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tinkex.engine.messages import Result, SaveResult, SaveRun
from tinkex.server.checkpoints.rules import Save
from tinkex.server.operations import address
from tinkex.server.operations.base import Around, Conclusion, OperationKind, Prepared
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.protocol.fields import Fields
from tinkex.server.protocol.outcomes import success
from tinkex.server.storage.database import samplers as samplers_table
from tinkex.server.storage.database.checkpoints import Kind
from tinkex.server.storage.database.samplers import SamplerRow
from tinkex.wire import routes

_SEQ_LIMIT = 2**63 - 1

Conclude: TypeAlias = Callable[[Result], Awaitable[Conclusion]]


async def _prepare(around: Around, run: Run, entry: Entry, body: bytes) -> Prepared:
    asked = read(entry.kind.name, Fields.parse(body))
    if isinstance(asked, int):
        return _sampler(around, run, entry, asked)
    return _checkpoint(around, run, entry, asked)


def _checkpoint(around: Around, run: Run, entry: Entry, asked: Asked) -> Prepared:
    checkpoints, name = around.checkpoints, entry.kind.name
    save = Save(run=run.row, kind=_SAVED_AS[name], **asdict(asked))
    checkpoints.admit(save)
    draft = checkpoints.begin()

    async def conclude(result: Result) -> Conclusion:
        assert isinstance(result, SaveResult)
        row = await checkpoints.seal(save, draft, result.step)
        values: dict[str, Any] = {"path": row.path, "type": name}
        if name == SAVE_WEIGHTS_EXTERNAL.name:
            values = {"path": row.path, "size_bytes": row.size_bytes}
        record = (lambda db: checkpoints.record(db, save, row),)
        return Conclusion(success(values), record, path=row.path)

    return _prepared(around, run, entry, draft, conclude)


def _sampler(around: Around, run: Run, entry: Entry, number: int) -> Prepared:
    draft = around.checkpoints.begin()
    sampler_id = f"{run.row.session_id}:sample:{number}"

    async def conclude(_: Result) -> Conclusion:
        await around.unnamed.admit(run.tenant)
        folder = await asyncio.to_thread(around.checkpoints.seal_unnamed, draft, run.row.base_model)
        row = SamplerRow(
            sampler_id=sampler_id,
            session_id=run.row.session_id,
            tenant=run.tenant,
            base_model=run.row.base_model,
            created_at=around.clock.now(),
            folder=folder,
        )
        outcome = success({"sampling_session_id": sampler_id, "type": entry.kind.name})
        made = (lambda db: samplers_table.insert(db, row),)
        return Conclusion(outcome, made, sampler=sampler_id)

    return _prepared(around, run, entry, draft, conclude)


def _prepared(around: Around, run: Run, entry: Entry, draft: Path, conclude: Conclude) -> Prepared:
    training = entry.kind is SAVE_WEIGHTS
    command = SaveRun(entry.request_id, run.model_id, str(draft), training)
    number = run.gaps.save() if entry.kind is SAVE_WEIGHTS_FOR_SAMPLER else None

    async def noted(result: Result) -> Conclusion:
        conclusion = await conclude(result)
        if number is not None:
            run.gaps.saved(number)
        return conclusion

    return Prepared((command,), noted, abandon=lambda: around.checkpoints.abandon(draft))


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
    if kind == SAVE_WEIGHTS_FOR_SAMPLER.name and not fields.has("path"):
        return _sampler_number(fields)
    asked = Asked(
        name=fields.text("path"),
        ttl_seconds=fields.optional_integer("ttl_seconds", low=-_SEQ_LIMIT, high=_SEQ_LIMIT),
        overwrite=kind == SAVE_WEIGHTS.name and fields.flag("overwrite", False),
        user_metadata=fields.mapping("user_metadata"),
        recipients=_recipients(fields) if kind == SAVE_WEIGHTS_EXTERNAL.name else (),
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


def _kind(name: str, path: str, uncounted: str | None = None) -> OperationKind:
    reader = functools.partial(read, name)
    return OperationKind(name=name, prepare=_prepare, path=path, read=reader, uncounted=uncounted)


SAVE_WEIGHTS = _kind("save_weights", routes.SAVE_WEIGHTS)
SAVE_WEIGHTS_FOR_SAMPLER = _kind(
    "save_weights_for_sampler", routes.SAVE_WEIGHTS_FOR_SAMPLER, "sampling_session_seq_id"
)
SAVE_WEIGHTS_EXTERNAL = _kind("save_weights_external", routes.SAVE_WEIGHTS_EXTERNAL)

_SAVED_AS: dict[str, Kind] = {
    SAVE_WEIGHTS.name: "weights",
    SAVE_WEIGHTS_FOR_SAMPLER.name: "sampler_weights",
    SAVE_WEIGHTS_EXTERNAL.name: "external_weights",
}
