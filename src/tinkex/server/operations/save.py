"""save_weights, save_weights_for_sampler, save_weights_external: a run's weights get a name.

Without a name, weights for a sampler become a sampling session and no checkpoint. The engine hands
them to sampling in its own memory and that is told at once; the files follow. Their folder is named
after the operation, so that one that is repeated fills the folder the sampler already points at.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from tinkex.engine.messages import Result, SaveResult, SaveRun, ServeRun
from tinkex.server.checkpoints.rules import Save
from tinkex.server.operations import address
from tinkex.server.operations.base import Around, Conclusion, OperationKind, Prepared
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.promises import Outcome
from tinkex.server.protocol.fields import Fields
from tinkex.server.protocol.outcomes import success
from tinkex.server.refusals import Refusal
from tinkex.server.storage.database.checkpoints import Kind
from tinkex.server.storage.database.samplers import SamplerRow
from tinkex.wire import routes

logger = logging.getLogger(__name__)

_SEQ_LIMIT = 2**63 - 1

Conclude: TypeAlias = Callable[[Result], Awaitable[Conclusion]]


async def _prepare(around: Around, run: Run, entry: Entry, body: bytes) -> Prepared:
    asked = read(entry.kind.name, Fields.parse(body))
    if isinstance(asked, int):
        return await _sampler(around, run, entry, asked)
    return _checkpoint(around, run, entry, asked)


def _checkpoint(around: Around, run: Run, entry: Entry, asked: Asked) -> Prepared:
    checkpoints, name = around.checkpoints, entry.kind.name
    save = Save(run=run.row, kind=_SAVED_AS[name], **asdict(asked))
    checkpoints.admit(save)
    draft = checkpoints.begin()
    number = run.gaps.save() if entry.kind is SAVE_WEIGHTS_FOR_SAMPLER else None

    async def conclude(result: Result) -> Conclusion:
        assert isinstance(result, SaveResult)
        row = await checkpoints.seal(save, draft, result.step)
        if number is not None:
            run.gaps.saved(number)
        values: dict[str, Any] = {"path": row.path, "type": name}
        if name == SAVE_WEIGHTS_EXTERNAL.name:
            values = {"path": row.path, "size_bytes": row.size_bytes}
        record = (lambda db: checkpoints.record(db, save, row),)
        return Conclusion(success(values), record, path=row.path)

    return _prepared(around, run, entry, draft, conclude)


async def _sampler(around: Around, run: Run, entry: Entry, number: int) -> Prepared:
    name, unwritten = folder_of(entry), around.unwritten
    row = SamplerRow(
        sampler_id=f"{run.row.session_id}:sample:{number}",
        session_id=run.row.session_id,
        tenant=run.tenant,
        base_model=run.row.base_model,
        created_at=around.clock.now(),
        folder=name,
        model_id=run.model_id,
    )
    await _admit(around, row, number)
    draft = await asyncio.to_thread(around.checkpoints.begin, name)
    outcome = success({"sampling_session_id": row.sampler_id, "type": entry.kind.name})
    saving = run.gaps.save()

    async def early() -> Outcome:
        unwritten.served(name, around.engines.get(row.base_model))
        await around.unnamed.promise(row)
        run.gaps.saved(saving)
        return outcome

    async def conclude(_: Result) -> Conclusion:
        await asyncio.to_thread(around.checkpoints.seal_unnamed, draft, row.base_model)
        unwritten.over(name)
        return Conclusion(outcome, sampler=row.sampler_id)

    def kept_back(error: Exception) -> None:
        unwritten.unwritable(name)
        text = "weights of %s could not be written and last only as long as their engine: %s"
        logger.error(text, row.sampler_id, error)

    place = str(around.checkpoints.place(name))
    serve = ServeRun(f"{entry.request_id}:serve", run.model_id, name, place)
    prepared = _prepared(around, run, entry, draft, conclude)
    commands = (serve, *prepared.commands)
    return replace(prepared, commands=commands, early=early, kept_back=kept_back)


async def _admit(around: Around, row: SamplerRow, number: int) -> None:
    """Refuse what cannot succeed; a repetition finds its own sampler there."""
    known = around.unnamed.known(row.sampler_id)
    if known is None:
        await around.unnamed.admit(row.tenant)
    elif known.folder != row.folder:
        raise Refusal(f"sampling_session_seq_id {number} was already used for other weights")


def _prepared(around: Around, run: Run, entry: Entry, draft: Path, conclude: Conclude) -> Prepared:
    training = entry.kind is SAVE_WEIGHTS
    command = SaveRun(entry.request_id, run.model_id, str(draft), training)
    return Prepared((command,), conclude, abandon=lambda: around.checkpoints.abandon(draft))


def folder_of(entry: Entry) -> str:
    """Where the weights lie that this operation saves without a name."""
    return hashlib.sha256(entry.request_id.encode()).hexdigest()[:32]


def expect(around: Around, entry: Entry) -> None:
    """After a restart: an operation still to be carried out, from which a sampler may already have
    been promised."""
    if entry.kind.saves and around.unnamed.promised(folder_of(entry)):
        around.unwritten.expect(folder_of(entry))


def give_up(around: Around, entry: Entry) -> None:
    """An operation will never be carried to its end: nobody need wait for what it would save."""
    if entry.kind.saves:
        around.unwritten.over(folder_of(entry))


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


def _kind(name: str, path: str) -> OperationKind:
    reader = functools.partial(read, name)
    return OperationKind(name=name, saves=True, prepare=_prepare, path=path, read=reader)


SAVE_WEIGHTS = _kind("save_weights", routes.SAVE_WEIGHTS)
SAVE_WEIGHTS_FOR_SAMPLER = replace(
    _kind("save_weights_for_sampler", routes.SAVE_WEIGHTS_FOR_SAMPLER),
    beside_saves=True,
    uncounted="sampling_session_seq_id",
)
SAVE_WEIGHTS_EXTERNAL = _kind("save_weights_external", routes.SAVE_WEIGHTS_EXTERNAL)

_SAVED_AS: dict[str, Kind] = {
    SAVE_WEIGHTS.name: "weights",
    SAVE_WEIGHTS_FOR_SAMPLER.name: "sampler_weights",
    SAVE_WEIGHTS_EXTERNAL.name: "external_weights",
}
