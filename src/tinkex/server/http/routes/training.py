"""Models and the operations of training. Answers are futures; results come from `polls`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.answers import LossCreated
from tinkex.server.http.exchange import (
    PROTOBUF,
    Handler,
    answer,
    bearer_of,
    core_of,
    read_body,
    read_json,
    read_json_and_body,
    sees_all,
    tenant_of,
)
from tinkex.server.http.routing import route
from tinkex.server.operations import load
from tinkex.server.operations.base import OperationKind
from tinkex.server.operations.kinds import KINDS
from tinkex.server.protocol import new_run
from tinkex.server.protocol.fields import Fields
from tinkex.server.refusals import Refusal
from tinkex.server.training.service import Accepted
from tinkex.types.futures import UntypedAPIFuture
from tinkex.types.models import GetInfoResponse
from tinkex.wire import routes as paths

_LOSS_BYTES = 1024 * 1024
_LOSS_INPUTS = 16
_LOSS_NODES = 10_000
_SEQ_LIMIT = 2**31 - 1


async def create_model(request: Request) -> Response:
    tenant = tenant_of(request)
    fields = await read_json(request)
    return _future(await core_of(request).training.create_model(tenant, fields))


async def forward_backward(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    body = await read_body(request, core.settings.limits.body_bytes)
    if not request.headers.get("content-type", "").startswith(PROTOBUF):
        raise Refusal(f"send forward_backward as {PROTOBUF}")
    return _future(await core.training.forward_backward(tenant, body))


async def load_weights(request: Request) -> Response:
    tenant = tenant_of(request)
    fields, body = await read_json_and_body(request)
    training = core_of(request).training
    owner = bearer_of(request, fields.optional_text("path") if sees_all(request) else None)
    if fields.has("session_id"):
        return _future(await training.create_from(tenant, fields, owner))
    return _future(await training.load_weights(tenant, fields, body, owner))


def operation(kind: OperationKind) -> Handler:
    """The handler of an operation that is nothing but a number in its run's order."""

    async def handler(request: Request) -> Response:
        tenant = tenant_of(request)
        fields, body = await read_json_and_body(request)
        return _future(await core_of(request).training.operation(tenant, kind, fields, body))

    return handler


async def create_custom_loss(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    session_id, number, name, spec = _loss(await read_json(request))
    core.sessions.alive(tenant, session_id)
    loss_id = await core.losses.create(tenant, session_id, number, name, spec)
    return answer({"request_id": loss_id})


async def get_info(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    model_id = _model_id(await read_json(request))
    row = core.runs.owned(tenant, model_id).row
    engine = core.engines.get(row.base_model)
    data = {
        "arch": None if engine.facts is None else engine.facts.architecture,
        "model_name": row.base_model,
        "tokenizer_id": engine.spec.tokenizer,
    }
    return answer(
        {
            "type": "get_info",
            "model_id": model_id,
            "model_data": {name: value for name, value in data.items() if value is not None},
            "optimizer_config": json.loads(row.optimizer),
            "is_lora": True,
            "lora_rank": row.rank,
            "model_name": row.base_model,
        }
    )


def _future(accepted: Accepted) -> Response:
    return answer({"request_id": accepted.request_id, "model_id": accepted.model_id})


def _model_id(fields: Fields) -> str:
    model_id = fields.text("model_id")
    fields.finish()
    return model_id


def _loading(fields: Fields) -> None:
    """Either of the two things `load_weights` is used for."""
    if fields.has("session_id"):
        new_run.read_from(fields)
    else:
        load.read(fields)


def _loss(fields: Fields) -> tuple[str, int, str, dict[str, object]]:
    session_id = fields.text("session_id")
    number = fields.integer("custom_loss_seq_id", low=0, high=_SEQ_LIMIT)
    name = fields.text("name", limit=256)
    inputs = [_input(each) for each in fields.objects("inputs", limit=_LOSS_INPUTS) or []]
    graph = fields.mapping("graph", limit_bytes=_LOSS_BYTES) or {}
    fields.finish()
    if not inputs or inputs[0]["name"] != "logprobs":
        raise Refusal("inputs[0] must be logprobs")
    return session_id, number, name, {"inputs": inputs, "nodes": _nodes(graph)}


def _input(fields: Fields) -> dict[str, object]:
    found = {"name": fields.text("name"), "rank": fields.integer("rank", low=0, high=2)}
    fields.finish()
    return found


def _nodes(graph: dict[str, object]) -> list[dict[str, object]]:
    nodes = graph.get("nodes")
    if graph.get("format") != 1 or not isinstance(nodes, list):
        raise Refusal("graph must have format 1 and a list of nodes")
    if len(nodes) > _LOSS_NODES or not all(isinstance(node, dict) for node in nodes):
        raise Refusal(f"graph.nodes must be at most {_LOSS_NODES} objects")
    return nodes


def _operations() -> Iterator[Route]:
    """One route for each kind that needs nothing but its place in the run's order."""
    for kind in KINDS:
        if kind.path is not None:
            yield route(
                "POST",
                kind.path,
                operation(kind),
                UntypedAPIFuture,
                reads=kind.read,
                checked_later=True,
            )


ROUTES: list[Route] = [
    route("POST", paths.CREATE_MODEL, create_model, UntypedAPIFuture, reads=new_run.read),
    route("POST", paths.GET_INFO, get_info, GetInfoResponse, reads=_model_id),
    route(
        "POST",
        paths.FORWARD_BACKWARD,
        forward_backward,
        UntypedAPIFuture,
        reads=PROTOBUF,
        checked_later=True,
    ),
    *_operations(),
    route(
        "POST",
        paths.LOAD_WEIGHTS,
        load_weights,
        UntypedAPIFuture,
        reads=_loading,
        checked_later=True,
    ),
    route("POST", paths.CREATE_CUSTOM_LOSS, create_custom_loss, LossCreated, reads=_loss),
]
