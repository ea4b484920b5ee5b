"""optim_step: apply the accumulated gradient and clear it."""

from __future__ import annotations

import json
import math

from tinkex.engine.messages import OptimStep, OptimStepResult, Result
from tinkex.server.operations.base import Around, Conclusion, OperationKind, Prepared
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.protocol import requests
from tinkex.server.protocol.outcomes import success
from tinkex.server.refusals import Refusal
from tinkex.server.storage.database import runs as runs_table
from tinkex.types.optimizer import AdamParams, DimuonParams
from tinkex.wire import routes


async def _prepare(_: Around, run: Run, entry: Entry, body: bytes) -> Prepared:
    optimizer, params = asked(body)
    family = json.loads(run.row.optimizer)["type"]
    if optimizer != family:
        raise Refusal(f"this run was created for {family} and cannot take a step of {optimizer}")
    command = OptimStep(entry.request_id, run.model_id, optimizer, params)

    async def conclude(result: Result) -> Conclusion:
        assert isinstance(result, OptimStepResult)
        outcome = success({"metrics": _finite(dict(result.metrics))})
        stepped = (lambda db: runs_table.stepped(db, run.model_id),)
        used = {"learning_rate": params["learning_rate"]}
        return Conclusion(outcome, stepped, {**result.metrics, **used})

    return Prepared((command,), conclude)


def asked(body: bytes) -> tuple[str, dict[str, float]]:
    """The optimizer's family and the numbers of one step."""
    params = requests.OPTIM_STEP.parse(body).optim_params
    if isinstance(params, DimuonParams):
        return params.type, params.model_dump(exclude={"type"})
    if not isinstance(params, AdamParams):
        if params.type != "adamw":
            raise Refusal("optimizer_params.type must be one of adamw, dimuon")
        params = requests.ADAM.read(params.model_dump(exclude={"type"}))
    return "adamw", params.model_dump()


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    """Leave out metrics that are not finite: JSON has no infinities, and they are never sent as
    text."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


OPTIM_STEP = OperationKind(
    name="optim_step",
    changes="weights",
    pipelined=True,
    beside_saves=True,
    is_step=True,
    prepare=_prepare,
    path=routes.OPTIM_STEP,
    reader=requests.OPTIM_STEP,
)
