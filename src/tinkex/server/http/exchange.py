"""Between HTTP and the services: who asks, with which body, and how the answer is sent.

`bodies` has how a body is read. Refusals become `{"detail": …}` with their status, uncompressed and
with a length.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tinkex.server.core import Core
from tinkex.server.dashboard.visits import PAGE_HEADER, Visit
from tinkex.server.refusals import Refusal, Unavailable
from tinkex.server.storage.database.transactions import DatabaseUnavailable
from tinkex.server.tenancy.tenants import OWNERS_PLACE, hash_key
from tinkex.wire.limits import (
    HEADER_API_KEY,
    HEADER_IDEMPOTENCY_KEY,
    HEADER_RETRY_AFTER,
)

logger = logging.getLogger(__name__)

_REPEAT_KEY_LIMIT = 256
"""Characters. A database looks requests up by it, and PostgreSQL's indexes take no long texts."""


class Broken(Refusal):
    """A bug of ours."""

    status = 500


T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


def core_of(request: Request) -> Core:
    core: Core = request.app.state.core
    return core


def tenant_of(request: Request) -> str:
    """The tenant, by the request's key or its dashboard visit; raises `Unauthorized`. A viewer who
    sees everything acts as the owner of the run or session in the path."""
    found: str | None = getattr(request.state, "tenant", None)
    if found is None:
        found = request.state.tenant = _asking(request)  # looked up several times in one request
    owner: str | None = getattr(request.state, "owner", None)
    return owner or found


async def look_up_owner(request: Request) -> None:
    """Find who owns the run or session in the path, for a viewer who sees everything; `tenant_of`
    uses it."""
    if request.path_params and sees_all(request):
        request.state.owner = await core_of(request).belongings.tenant(request.path_params)


def _asking(request: Request) -> str:
    tenants, visit = core_of(request).tenants, visit_of(request)
    if visit is not None:
        return tenants.of_digest(visit.digest, is_owner=visit.invited)
    return tenants.identify(_key(request), is_owner=is_owner(request))


def _key(request: Request) -> str | None:
    """The API key: in a header of its own, or as other APIs have it, as a bearer token."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return request.headers.get(HEADER_API_KEY) or (token if kind.lower() == "bearer" else None)


def repeat_key_of(request: Request) -> str | None:
    """The key by which a repeated request is recognised when its answer got lost."""
    key = request.headers.get(HEADER_IDEMPOTENCY_KEY)
    if key is not None and len(key) > _REPEAT_KEY_LIMIT:
        raise Refusal(
            f"{HEADER_IDEMPOTENCY_KEY} has {len(key)} characters; the limit is {_REPEAT_KEY_LIMIT}"
        )
    return key


def viewer_of(request: Request) -> str | None:
    """Whose things a list shows: a tenant's, or everybody's for a viewer who may see everything."""
    tenant = tenant_of(request)
    return None if sees_all(request) else tenant


async def bearer_of(request: Request, path: str | None) -> str | None:
    """The tenant as whom a checkpoint named in a body is read: its owner, for a viewer who sees
    everything."""
    if path is None or not sees_all(request):
        return None
    return await core_of(request).belongings.of_checkpoint(path)


def origin_of(request: Request) -> str:
    """The address by which this client reaches the server; links made for it begin with it."""
    return f"{request.url.scheme}://{request.url.netloc}"


def is_owner(request: Request) -> bool:
    """Whether the client is a process of the user who owns the home: it can read its files."""
    return bool(request.scope.get("server") == OWNERS_PLACE)


def sees_all(request: Request) -> bool:
    """Whether the client may manage every tenant's things: the home's owner, a visitor who came by
    a link from the server's terminal, or an operator's key."""
    visit, tenants = visit_of(request), core_of(request).tenants
    if visit is not None:
        return visit.invited or tenants.is_operator(visit.digest)
    return is_owner(request) or tenants.is_operator(hash_key(_key(request) or ""))


def visit_of(request: Request) -> Visit | None:
    """The dashboard visit of a request. A key in the request takes precedence."""
    if _key(request) is not None or PAGE_HEADER not in request.headers:
        return None
    visits = core_of(request).visits
    return visits.read(request.cookies.get(visits.cookie), request.headers[PAGE_HEADER])


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`; `ClientDisconnect` as soon as its client has closed the connection. The
    request's body must have been read."""
    waiting = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        return waiting.result()
    finally:
        waiting.cancel()
        gone.cancel()


def answer(
    values: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer."""
    body = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return Response(body, status, headers, media_type="application/json")


def nothing() -> Response:
    """An answer that nobody reads."""
    return answer({"status": "ok"})


def refused(refusal: Refusal) -> Response:
    response = answer({"detail": refusal.detail}, refusal.status)
    if refusal.retry_after is not None:
        response.headers[HEADER_RETRY_AFTER] = str(math.ceil(refusal.retry_after))
    return response


def _reason(error: Exception) -> str:
    """Why the disk refused, without the names of our files."""
    return error.strerror or "error" if isinstance(error, OSError) else str(error)


def guarded(
    handler: Handler, path: str, refused: Callable[[Refusal], Response] = refused
) -> Handler:
    """A handler whose refusals become answers. Its bugs are logged and give nothing away. `path` is
    the route's name in reports, `refused` the shape of a refusal."""

    async def guard(request: Request) -> Response:
        try:
            await look_up_owner(request)
            return await handler(request)
        except Refusal as refusal:
            core_of(request).narrator.refused(path, refusal.status, refusal.detail)
            return refused(refusal)
        except ClientDisconnect:
            return Response(status_code=499)
        except (OSError, DatabaseUnavailable) as error:
            logger.error("%s %s: %s", request.method, request.url.path, error)
            return refused(Unavailable(f"the disk did not take this: {_reason(error)}", 5.0))
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.url.path)
            return refused(Broken(f"the server failed on this request ({type(error).__name__})"))

    return guard
