"""Samplers and samples."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.bodies import in_turn, read, received
from tinkex.server.http.exchange import answer, bearer_of, core_of, tenant_of
from tinkex.server.http.routing import route
from tinkex.server.protocol import requests, sample_request
from tinkex.types.futures import UntypedAPIFuture
from tinkex.types.sampling import (
    CreateSamplingSessionResponse,
    GetSamplerResponse,
    JoinSamplingSessionResponse,
)
from tinkex.wire import routes as paths


async def create_sampler(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    asked = await read(request, requests.CREATE_SAMPLER)
    await core.sessions.alive(tenant, asked.session_id)
    sampler_id = await core.samplers.create(
        tenant,
        asked.session_id,
        asked.sampling_session_seq_id,
        asked.model_path,
        asked.base_model,
        await bearer_of(request, asked.model_path),
    )
    return answer({"type": "create_sampling_session", "sampling_session_id": sampler_id})


async def join_sampler(request: Request) -> Response:
    tenant = tenant_of(request)
    asked = await read(request, requests.JOIN_SAMPLER)
    counter = await core_of(request).samplers.join(tenant, asked.sampling_session_id)
    return answer({"client_counter": counter})


async def sample(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    async with received(request) as body:
        parse = partial(sample_request.parse, body, core.settings.limits.num_samples)
        asked, size = await in_turn(request, len(body), parse), len(body)
    job = await core.sampling.submit(tenant, asked, size)
    return answer({"request_id": job.request_id, "sample_sequence_ids": job.sequence_ids})


async def get_sampler(request: Request) -> Response:
    samplers, sampler_id = core_of(request).samplers, request.path_params["sampler_id"]
    row = await samplers.owned(tenant_of(request), sampler_id)
    values = {"sampler_id": row.sampler_id, "base_model": row.base_model}
    return answer({**values, "model_path": row.model_path} if row.model_path else values)


ROUTES: list[Route] = [
    route(
        "POST",
        paths.CREATE_SAMPLING_SESSION,
        create_sampler,
        CreateSamplingSessionResponse,
        reads=requests.CREATE_SAMPLER,
    ),
    route(
        "POST",
        paths.JOIN_SAMPLING_SESSION,
        join_sampler,
        JoinSamplingSessionResponse,
        reads=requests.JOIN_SAMPLER,
    ),
    route("POST", paths.ASAMPLE, sample, UntypedAPIFuture, reads=requests.ASAMPLE),
    route("GET", paths.SAMPLER, get_sampler, GetSamplerResponse),
]
