"""optim_step: apply the accumulated gradient and clear it."""

from __future__ import annotations

import json
import math

from tinkex.engine.messages import OptimStep, OptimStepResult, Result
from tinkex.server.operations import address
from tinkex.server.operations.base import Around, Conclusion, OperationKind, Prepared
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.protocol.fields import Fields
from tinkex.server.protocol.outcomes import success
from tinkex.server.refusals import Refusal
from tinkex.server.storage.database import runs as runs_table
from tinkex.wire import routes


async def _prepare(_: Around, run: Run, entry: Entry, body: bytes) -> Prepared:
    optimizer, params = read(Fields.parse(body))
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


def read(fields: Fields) -> tuple[str, dict[str, float]]:
    """The optimizer's family and settings that a body asks for."""
    address.read(fields)
    found = _params(fields)
    fields.finish()
    return found


def _params(fields: Fields) -> tuple[str, dict[str, float]]:
    adam, other = fields.nested("adam_params"), fields.nested("optimizer_params")
    if (adam is None) == (other is None):
        raise Refusal("give either adam_params or optimizer_params")
    if adam is not None:
        return "adamw", _adam(adam)
    assert other is not None
    family = other.choice("type", ("adamw", "dimuon"))
    return family, _adam(other) if family == "adamw" else _dimuon(other)


def _adam(fields: Fields) -> dict[str, float]:
    below_one = math.nextafter(1.0, 0.0)
    params = {
        "learning_rate": fields.number("learning_rate", low=0.0, default=1e-4),
        "beta1": fields.number("beta1", low=0.0, high=below_one, default=0.9),
        "beta2": fields.number("beta2", low=0.0, high=below_one, default=0.95),
        "eps": fields.number("eps", low=0.0, default=1e-12),
        "weight_decay": fields.number("weight_decay", low=0.0, default=0.0),
        "grad_clip_norm": fields.number("grad_clip_norm", low=0.0, default=0.0),
    }
    fields.finish()
    return params


def _dimuon(fields: Fields) -> dict[str, float]:
    params = {
        "learning_rate": fields.number("learning_rate", low=0.0),
        "beta1": fields.number("beta1", low=0.0, high=math.nextafter(1.0, 0.0), default=0.9),
        "grad_clip_norm": fields.number("grad_clip_norm", low=-math.inf, default=0.0),
    }
    fields.finish()
    return params


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    """JSON has no infinities; a metric that is not a number is left out, never sent as text."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


OPTIM_STEP = OperationKind(
    name="optim_step",
    changes="weights",
    pipelined=True,
    beside_saves=True,
    is_step=True,
    prepare=_prepare,
    path=routes.OPTIM_STEP,
    read=read,
)
