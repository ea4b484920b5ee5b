"""Models and the operations of training. Answers are futures; results come from `polls`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.answers import LossCreated
from tinkex.server.http.bodies import read, received, received_values
from tinkex.server.http.exchange import (
    Handler,
    answer,
    bearer_of,
    core_of,
    sees_all,
    tenant_of,
)
from tinkex.server.http.routing import route
from tinkex.server.operations.base import OperationKind
from tinkex.server.operations.kinds import KINDS
from tinkex.server.protocol import requests
from tinkex.server.refusals import Refusal
from tinkex.server.training.service import Accepted
from tinkex.types.futures import UntypedAPIFuture
from tinkex.types.models import CreateCustomLossRequest, GetInfoResponse
from tinkex.wire import routes as paths
from tinkex.wire.limits import PROTOBUF_TYPE


async def create_model(request: Request) -> Response:
    tenant = tenant_of(request)
    asked = await read(request, requests.CREATE_MODEL)
    return _future(await core_of(request).training.create_model(tenant, asked))


async def forward_backward(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    async with received(request, core.settings.limits.body_bytes) as body:
        if not request.headers.get("content-type", "").startswith(PROTOBUF_TYPE):
            raise Refusal(f"send forward_backward as {PROTOBUF_TYPE}")
        return _future(await core.training.forward_backward(tenant, body))


async def load_weights(request: Request) -> Response:
    tenant = tenant_of(request)
    training = core_of(request).training
    async with received_values(request) as (values, body):
        path = values.get("path") if sees_all(request) else None
        owner = await bearer_of(request, path if isinstance(path, str) else None)
        if values.get("session_id") is not None:
            asked = requests.CREATE_FROM.read(values)
            return _future(await training.create_from(tenant, asked, owner))
        return _future(await training.load_weights(tenant, values, body, owner))


def operation(kind: OperationKind) -> Handler:
    """The handler of an operation that is nothing but a number in its run's order."""

    async def handler(request: Request) -> Response:
        tenant = tenant_of(request)
        training = core_of(request).training
        async with received_values(request) as (values, body):
            return _future(await training.operation(tenant, kind, values, body))

    return handler


async def create_custom_loss(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    asked = await read(request, requests.CREATE_CUSTOM_LOSS)
    if not asked.inputs or asked.inputs[0].name != "logprobs":
        raise Refusal("inputs[0] must be logprobs")
    await core.sessions.alive(tenant, asked.session_id)
    loss_id = await core.losses.create(
        tenant,
        asked.session_id,
        asked.custom_loss_seq_id,
        asked.name,
        await core.reading.run(tenant, partial(_loss, asked)),
    )
    return answer({"request_id": loss_id})


async def get_info(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    model_id = (await read(request, requests.GET_INFO)).model_id
    row = (await core.runs.owned(tenant, model_id)).row
    pool = core.engines.get(row.base_model)
    data = {
        "arch": None if pool.facts is None else pool.facts.architecture,
        "model_name": row.base_model,
        "tokenizer_id": pool.spec.tokenizer,
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


def _loss(asked: CreateCustomLossRequest) -> dict[str, object]:
    """A loss as engines are given it, with no more than was said."""
    graph = asked.graph.model_dump(exclude_unset=True)
    return {"inputs": [each.model_dump() for each in asked.inputs], "nodes": graph["nodes"]}


def _operations() -> Iterator[Route]:
    """One route for each kind that needs nothing but its place in the run's order."""
    for kind in KINDS:
        if kind.path is not None:
            yield route(
                "POST",
                kind.path,
                operation(kind),
                UntypedAPIFuture,
                reads=kind.reader,
                checked_later=True,
            )


ROUTES: list[Route] = [
    route("POST", paths.CREATE_MODEL, create_model, UntypedAPIFuture, reads=requests.CREATE_MODEL),
    route("POST", paths.GET_INFO, get_info, GetInfoResponse, reads=requests.GET_INFO),
    route(
        "POST",
        paths.FORWARD_BACKWARD,
        forward_backward,
        UntypedAPIFuture,
        reads=PROTOBUF_TYPE,
        checked_later=True,
    ),
    *_operations(),
    route(
        "POST",
        paths.LOAD_WEIGHTS,
        load_weights,
        UntypedAPIFuture,
        reads=(requests.CREATE_FROM, requests.LOAD_WEIGHTS),
        checked_later=True,
    ),
    route(
        "POST",
        paths.CREATE_CUSTOM_LOSS,
        create_custom_loss,
        LossCreated,
        reads=requests.CREATE_CUSTOM_LOSS,
    ),
]
