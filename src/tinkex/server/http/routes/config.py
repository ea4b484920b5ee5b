"""What a client asks before anything else: flags, models, health, and who its key is."""

from __future__ import annotations

import asyncio
import contextlib
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.engines.model_sources import declared_context
from tinkex.server.engines.pool import Pool
from tinkex.server.http.answers import Done, Health, KeyInfo
from tinkex.server.http.bodies import read
from tinkex.server.http.exchange import answer, core_of, nothing, tenant_of
from tinkex.server.http.routing import route
from tinkex.server.protocol import requests
from tinkex.server.refusals import Refusal, Unavailable
from tinkex.types.service import (
    ClientConfigResponse,
    ClientDynamicConfigResponse,
    GetServerCapabilitiesResponse,
)
from tinkex.wire import routes as paths
from tinkex.wire.flags import encode_config

_LOADING_S = 20.0


@cache
def _flags() -> bytes:
    # Compressing requests costs more on loopback than it saves, so that flag stays off.
    return encode_config(
        ClientConfigResponse(
            sample_use_retrieve_futures=True,
            create_model_via_load_weights=True,
            custom_loss_server_side=True,
            sample_join_sampling_session=True,
        )
    )


@cache
def _dynamic_flags() -> bytes:
    return encode_config(ClientDynamicConfigResponse(sample_cancel_enabled=True))


async def client_config(request: Request) -> Response:
    tenant_of(request)
    await read(request, requests.CLIENT_CONFIG)
    return Response(_flags(), media_type="application/json")


async def dynamic_config(request: Request) -> Response:
    tenant_of(request)
    await read(request, requests.CLIENT_CONFIG)
    return Response(_dynamic_flags(), media_type="application/json")


async def health(request: Request) -> Response:
    """200 only when every model can serve, at once or on demand, and the database takes writes;
    each engine's state, and what goes on with less than it should have. Needs no key."""
    core = core_of(request)
    trouble, degraded = await core.database.trouble(), core.store_trouble()
    if trouble is not None:
        raise Unavailable(trouble, 1.0)
    for pool in core.engines.pools:
        if not pool.takes_work and not pool.is_asleep:
            raise Unavailable(f"{pool.spec.name}: {pool.reason}", 1.0)
    engines = [
        {"engine": each.name, "state": each.state, "reason": each.condition}
        for each in core.engines
    ]
    said = {"status": "ok", "degraded": [degraded] if degraded else [], "engines": engines}
    return answer(said)


async def capabilities(request: Request) -> Response:
    tenant_of(request)
    engines = core_of(request).engines
    models = []
    for name in engines.names():
        context, training = await _lengths(engines.get(name))
        model = {"model_name": name, "trainable": True, "sampleable": True}
        lengths = {"max_context_length": context, "max_training_length": training}
        models.append({**model, **lengths})
    return answer({"supported_models": models})


async def _lengths(pool: Pool) -> tuple[int | None, int | None]:
    """What is known of a model's context and of its longest trained sequence, waiting a while for
    one that is still being loaded."""
    if not pool.is_asleep:
        with contextlib.suppress(TimeoutError):
            facts = await asyncio.wait_for(pool.ready(), _LOADING_S)
            return facts.max_context, facts.max_training
    return declared_context(Path(pool.spec.source)), None


async def token(request: Request) -> Response:
    tenant_of(request)
    raise Refusal("this server takes API keys as they are; there is no token to exchange")


async def key_info(request: Request) -> Response:
    tenant = tenant_of(request)
    details = {"org_details": {"name": "local"}, "user_details": {"email": tenant}}
    return answer({"key_id": 0, "name": tenant, "note": "", "details": details})


async def revoke_key(request: Request) -> Response:
    tenant_of(request)
    return nothing()


ROUTES: list[Route] = [
    route(
        "POST",
        paths.CLIENT_CONFIG,
        client_config,
        ClientConfigResponse,
        reads=requests.CLIENT_CONFIG,
    ),
    route(
        "POST",
        paths.CLIENT_DYNAMIC_CONFIG,
        dynamic_config,
        ClientDynamicConfigResponse,
        reads=requests.CLIENT_CONFIG,
    ),
    route("GET", paths.HEALTH, health, Health, needs_key=False),
    route("GET", paths.SERVER_CAPABILITIES, capabilities, GetServerCapabilitiesResponse),
    route("POST", paths.AUTH_TOKEN, token),
    route("GET", paths.API_KEY_ME, key_info, KeyInfo),
    route("DELETE", paths.API_KEY_ME, revoke_key, Done),
]
