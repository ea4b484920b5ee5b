"""Samplers and samples."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.exchange import answer, bearer_of, core_of, read_body, read_json, tenant_of
from tinkex.server.http.routing import route
from tinkex.server.protocol import sample_request
from tinkex.server.protocol.fields import Fields
from tinkex.types.futures import UntypedAPIFuture
from tinkex.types.sampling import (
    CreateSamplingSessionResponse,
    GetSamplerResponse,
    JoinSamplingSessionResponse,
)
from tinkex.wire import routes as paths

_INLINE_BYTES = 32 * 1024
_SEQ_LIMIT = 2**63 - 1


async def create_sampler(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    session_id, number, path, base_model = _new_sampler(await read_json(request))
    core.sessions.alive(tenant, session_id)
    bearer = bearer_of(request, path)
    sampler_id = await core.samplers.create(tenant, session_id, number, path, base_model, bearer)
    return answer({"type": "create_sampling_session", "sampling_session_id": sampler_id})


async def join_sampler(request: Request) -> Response:
    tenant = tenant_of(request)
    sampler_id = _joined(await read_json(request))
    return answer({"client_counter": await core_of(request).samplers.join(tenant, sampler_id)})


async def sample(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    limits = core.settings.limits
    body = await read_body(request, limits.json_body_bytes)
    if len(body) <= _INLINE_BYTES:
        asked = sample_request.parse(body, limits.num_samples)
    else:
        asked = await asyncio.to_thread(sample_request.parse, body, limits.num_samples)
    job = await core.sampling.submit(tenant, asked, len(body))
    return answer({"request_id": job.request_id, "sample_sequence_ids": job.sequence_ids})


async def get_sampler(request: Request) -> Response:
    row = core_of(request).samplers.owned(tenant_of(request), request.path_params["sampler_id"])
    values = {"sampler_id": row.sampler_id, "base_model": row.base_model}
    return answer({**values, "model_path": row.model_path} if row.model_path else values)


def _new_sampler(fields: Fields) -> tuple[str, int, str | None, str | None]:
    found = (
        fields.text("session_id"),
        fields.integer("sampling_session_seq_id", low=0, high=_SEQ_LIMIT),
        fields.optional_text("model_path"),
        fields.optional_text("base_model"),
    )
    fields.finish()
    return found


def _joined(fields: Fields) -> str:
    sampler_id = fields.text("sampling_session_id")
    fields.finish()
    return sampler_id


ROUTES: list[Route] = [
    route(
        "POST",
        paths.CREATE_SAMPLING_SESSION,
        create_sampler,
        CreateSamplingSessionResponse,
        reads=_new_sampler,
    ),
    route(
        "POST",
        paths.JOIN_SAMPLING_SESSION,
        join_sampler,
        JoinSamplingSessionResponse,
        reads=_joined,
    ),
    route("POST", paths.ASAMPLE, sample, UntypedAPIFuture, reads=sample_request.read),
    route("GET", paths.SAMPLER, get_sampler, GetSamplerResponse),
]
