"""save_weights, save_weights_for_sampler, save_weights_external: a run's weights get a name.

Unnamed weights for a sampler become a sampling session and no checkpoint. The engine hands them to
sampling in its own memory, the client is answered at once, and the files follow. Their folder is
named after the operation, so a repeated one fills the folder that the sampler already points at.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from tinkex.engine.messages import Result, SaveResult, SaveRun, ServeRun
from tinkex.server.checkpoints.rules import Save
from tinkex.server.operations.base import Around, Conclusion, OperationKind, Prepared
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.promises import Outcome
from tinkex.server.protocol import requests
from tinkex.server.protocol.outcomes import success
from tinkex.server.protocol.reading import Reader
from tinkex.server.refusals import Refusal
from tinkex.server.storage.database.checkpoints import Kind
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.samplers import SamplerRow
from tinkex.types.checkpoints import (
    SaveWeightsExternalRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
)
from tinkex.types.tinker_path import EXTERNAL_WEIGHTS, SAMPLER_WEIGHTS, TRAINING_WEIGHTS
from tinkex.wire import routes

logger = logging.getLogger(__name__)

Request: TypeAlias = SaveWeightsRequest | SaveWeightsForSamplerRequest | SaveWeightsExternalRequest
Conclude: TypeAlias = Callable[[Result], Awaitable[Conclusion]]


async def _prepare(around: Around, run: Run, entry: Entry, body: bytes) -> Prepared:
    asked = _READERS[entry.kind.name].parse(body)
    if asked.path is not None:
        return await _checkpoint(around, run, entry, asked)
    if asked.sampling_session_seq_id is None:
        raise Refusal("path is required, or sampling_session_seq_id for a sampler without a name")
    return await _sampler(around, run, entry, asked.sampling_session_seq_id)


async def _checkpoint(around: Around, run: Run, entry: Entry, asked: Request) -> Prepared:
    checkpoints, name = around.checkpoints, entry.kind.name
    save = _save(run.row, _SAVED_AS[name], asked)
    await checkpoints.admit(save)
    draft = checkpoints.begin()
    number = run.gaps.save() if entry.kind is SAVE_WEIGHTS_FOR_SAMPLER else None

    async def conclude(result: Result) -> Conclusion:
        assert isinstance(result, SaveResult)
        row = await checkpoints.seal(save, draft, result)
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
        engine = around.engines.at(run.residence)
        if engine is None:  # died since: this operation will be repeated
            unwritten.expect(name)
        else:
            unwritten.served(name, engine)
        await around.unnamed.promise(row)
        run.gaps.saved(saving)
        return outcome

    async def conclude(result: Result) -> Conclusion:
        assert isinstance(result, SaveResult)
        await around.checkpoints.seal_unnamed(draft, row.base_model, result)
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
    """Refuse what cannot succeed. A repeated operation finds its own sampler."""
    known = await around.unnamed.known(row.sampler_id)
    if known is None:
        await around.unnamed.admit(row.tenant)
    elif known.folder != row.folder:
        raise Refusal(f"sampling_session_seq_id {number} was already used for other weights")


def _prepared(around: Around, run: Run, entry: Entry, draft: Path, conclude: Conclude) -> Prepared:
    training = entry.kind is SAVE_WEIGHTS
    command = SaveRun(entry.request_id, run.model_id, str(draft), training)
    return Prepared((command,), conclude, abandon=lambda: around.checkpoints.abandon(draft))


def folder_of(entry: Entry) -> str:
    """The folder of the weights that this operation saves without a name."""
    return hashlib.sha256(entry.request_id.encode()).hexdigest()[:32]


async def expect(around: Around, entry: Entry) -> None:
    """After a restart: an operation still to be carried out, from which a sampler may already have
    been promised."""
    if entry.kind.saves and await around.unnamed.promised(folder_of(entry)):
        around.unwritten.expect(folder_of(entry))


def give_up(around: Around, entry: Entry) -> None:
    """An operation will never end: samples need not wait for what it would save."""
    if entry.kind.saves:
        around.unwritten.over(folder_of(entry))


def _save(run: RunRow, kind: Kind, asked: Request) -> Save:
    """One save for the three requests, whose types differ only besides name and lifetime."""
    return Save(
        run=run,
        kind=kind,
        name=asked.path or "",
        ttl_seconds=asked.ttl_seconds,
        overwrite=getattr(asked, "overwrite", False),
        user_metadata=getattr(asked, "user_metadata", None),
        recipients=tuple(getattr(asked, "age_encryption_recipients", None) or ()),
    )


_READERS: dict[str, Reader[Any]] = {
    "save_weights": requests.SAVE_WEIGHTS,
    "save_weights_for_sampler": requests.SAVE_WEIGHTS_FOR_SAMPLER,
    "save_weights_external": requests.SAVE_WEIGHTS_EXTERNAL,
}


def _kind(name: str, path: str) -> OperationKind:
    reader = _READERS[name]
    return OperationKind(name=name, saves=True, prepare=_prepare, path=path, reader=reader)


SAVE_WEIGHTS = _kind("save_weights", routes.SAVE_WEIGHTS)
SAVE_WEIGHTS_FOR_SAMPLER = replace(
    _kind("save_weights_for_sampler", routes.SAVE_WEIGHTS_FOR_SAMPLER),
    beside_saves=True,
    uncounted="sampling_session_seq_id",
)
SAVE_WEIGHTS_EXTERNAL = _kind("save_weights_external", routes.SAVE_WEIGHTS_EXTERNAL)

_SAVED_AS: dict[str, Kind] = {
    SAVE_WEIGHTS.name: TRAINING_WEIGHTS,
    SAVE_WEIGHTS_FOR_SAMPLER.name: SAMPLER_WEIGHTS,
    SAVE_WEIGHTS_EXTERNAL.name: EXTERNAL_WEIGHTS,
}
