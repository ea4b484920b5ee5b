"""Models and the operations of training. Answers are futures; results come from `futures`."""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.refusals import Refusal
from tinkex.server.routes import route
from tinkex.server.routes.http import (
    PROTOBUF,
    Handler,
    answer,
    core_of,
    read_body,
    read_json,
    read_json_and_body,
    tenant_of,
)
from tinkex.server.training import Accepted
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
    if fields.has("session_id"):
        return _future(await training.create_from(tenant, fields))
    return _future(await training.operation(tenant, "load_weights", fields, body))


def operation(kind: str) -> Handler:
    """The handler of an operation that is nothing but a number in its run's order."""

    async def handler(request: Request) -> Response:
        tenant = tenant_of(request)
        fields, body = await read_json_and_body(request)
        return _future(await core_of(request).training.operation(tenant, kind, fields, body))

    return handler


async def create_custom_loss(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    fields = await read_json(request)
    session_id = fields.text("session_id")
    core.sessions.alive(tenant, session_id)
    number = fields.integer("custom_loss_seq_id", low=0, high=_SEQ_LIMIT)
    name = fields.text("name", limit=256)
    inputs = fields.items("inputs", limit=_LOSS_INPUTS) or []
    graph = fields.mapping("graph", limit_bytes=_LOSS_BYTES) or {}
    fields.finish()
    spec = {"inputs": _inputs(inputs), "nodes": _nodes(graph)}
    loss_id = await core.losses.create(tenant, session_id, number, name, spec)
    return answer({"request_id": loss_id})


async def get_info(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    fields = await read_json(request)
    model_id = fields.text("model_id")
    fields.finish()
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


def _inputs(inputs: list[object]) -> list[dict[str, object]]:
    checked: list[dict[str, object]] = []
    for index, entry in enumerate(inputs):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise Refusal(f"inputs[{index}] must be an object with a name and a rank")
        if type(entry.get("rank")) is not int or not 0 <= entry["rank"] <= 2:
            raise Refusal(f"inputs[{index}].rank must be 0, 1 or 2")
        checked.append({"name": entry["name"], "rank": entry["rank"]})
    if not checked or checked[0]["name"] != "logprobs":
        raise Refusal("inputs[0] must be logprobs")
    return checked


def _nodes(graph: dict[str, object]) -> list[dict[str, object]]:
    nodes = graph.get("nodes")
    if graph.get("format") != 1 or not isinstance(nodes, list):
        raise Refusal("graph must have format 1 and a list of nodes")
    if len(nodes) > _LOSS_NODES or not all(isinstance(node, dict) for node in nodes):
        raise Refusal(f"graph.nodes must be at most {_LOSS_NODES} objects")
    return nodes


ROUTES: list[Route] = [
    route("POST", paths.CREATE_MODEL, create_model),
    route("POST", paths.GET_INFO, get_info),
    route("POST", paths.FORWARD_BACKWARD, forward_backward),
    route("POST", paths.OPTIM_STEP, operation("optim_step")),
    route("POST", paths.SAVE_WEIGHTS, operation("save_weights")),
    route("POST", paths.SAVE_WEIGHTS_FOR_SAMPLER, operation("save_weights_for_sampler")),
    route("POST", paths.SAVE_WEIGHTS_EXTERNAL, operation("save_weights_external")),
    route("POST", paths.LOAD_WEIGHTS, load_weights),
    route("POST", paths.CREATE_CUSTOM_LOSS, create_custom_loss),
]
