"""load_weights: a run's weights are replaced by a checkpoint's, or a run is made from one.

The checkpoint's files are pinned before they are first read: the run must be able to repeat the
load until a snapshot covers it, whatever becomes of the checkpoint meanwhile. A foreign access
token never gets this far: the log keeps the tenant it stands for, as `bearer`.
"""

from __future__ import annotations

import json
from dataclasses import replace

from tinkex.engine.messages import LoadRun, Result, RunInfo, WeightsRef
from tinkex.server.operations.base import Around, Conclusion, OperationKind, Prepared
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.promises import Outcome
from tinkex.server.protocol import requests
from tinkex.server.protocol.json_body import parse
from tinkex.server.protocol.outcomes import success
from tinkex.server.refusals import Refusal
from tinkex.server.storage.database import runs as runs_table
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.types.tinker_path import EXTERNAL_WEIGHTS


async def source(
    around: Around, tenant: str, path: str, bearer: str | None, base_model: str
) -> CheckpointRow:
    """A checkpoint that can be trained on, of the right base model."""
    row = await around.checkpoints.find(tenant, path, bearer)
    if row.kind == EXTERNAL_WEIGHTS:
        raise Refusal(f"{path} is an export for use elsewhere: load a training checkpoint")
    if around.engines.get(row.base_model) is not around.engines.get(base_model):
        raise Refusal(f"{path} belongs to {row.base_model}, this run to {base_model}")
    return row


async def _prepare(around: Around, run: Run, entry: Entry, body: bytes) -> Prepared:
    """`load_weights` into a run that exists."""
    values = parse(body)
    bearer = values.pop("bearer", None)
    asked = requests.LOAD_WEIGHTS.read(values)
    path = asked.path
    weights = await _pinned(around, run, entry, path, bearer, asked.optimizer)
    command = LoadRun(entry.request_id, run.model_id, weights, asked.optimizer)

    async def conclude(result: Result) -> Conclusion:
        assert isinstance(result, RunInfo)
        step = result.step
        origin = (lambda db: runs_table.set_origin(db, run.model_id, path, step),)
        return Conclusion(_loaded(run, path), origin)

    return Prepared((command,), conclude)


async def _prepare_creation(around: Around, run: Run, entry: Entry, body: bytes) -> Prepared:
    """The first operation of a run that is made from a checkpoint."""
    asked = json.loads(body)
    path, optimizer = asked["path"], asked["optimizer"]
    weights = await _pinned(around, run, entry, path, asked["bearer"], optimizer)
    family, saved = json.loads(run.row.optimizer)["type"], asked["family"]
    if optimizer and family != saved:
        raise Refusal(f"the checkpoint's optimizer is {saved}, not {family}")

    async def conclude(result: Result) -> Conclusion:
        assert isinstance(result, RunInfo)
        lora, step = result.lora, result.step
        row = replace(
            run.row,
            rank=lora.rank,
            train_attn=lora.train_attn,
            train_mlp=lora.train_mlp,
            train_unembed=lora.train_unembed,
        )
        run.learn(row)
        return Conclusion(
            _loaded(run, path),
            (
                lambda db: runs_table.set_lora(db, row),
                lambda db: runs_table.set_origin(db, row.model_id, path, step),
            ),
        )

    command = LoadRun(
        entry.request_id, run.model_id, weights, optimizer, create=True, family=family
    )
    return Prepared((command,), conclude)


async def _pinned(
    around: Around, run: Run, entry: Entry, path: str, bearer: str | None, optimizer: bool
) -> WeightsRef:
    pinned = await around.pins.find(entry.request_id)
    if pinned is not None:
        return pinned
    row = await source(around, run.tenant, path, bearer, run.row.base_model)
    if optimizer and row.kind != "weights":
        raise Refusal(f"{path} holds no optimizer state: load it with optimizer=false")
    folder = await around.checkpoints.verified(row)
    return await around.pins.pin(entry.request_id, row.folder, folder)


def _loaded(run: Run, path: str) -> Outcome:
    """The answer, under the one name that the protocol knows."""
    return success({"path": path, "model_id": run.model_id, "type": LOAD_WEIGHTS.name})


LOAD_WEIGHTS = OperationKind(name="load_weights", changes="weights", pins=True, prepare=_prepare)
CREATE_FROM = OperationKind(
    name="create_from", changes="weights", pins=True, prepare=_prepare_creation
)
