"""What all endpoints share: weights by name, text, draws; and what every request passes first."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tinkex.server.core import Core
from tinkex.server.endpoints.declared import Declared
from tinkex.server.endpoints.draws import Draws
from tinkex.server.endpoints.errors import Unfit
from tinkex.server.endpoints.targets import Target, Targets
from tinkex.server.endpoints.texts import Texts
from tinkex.server.http.bodies import received
from tinkex.server.http.exchange import bearer_of, core_of, tenant_of
from tinkex.server.protocol.written import written
from tinkex.text.errors import TokenizerError
from tinkex.types.tinker_path import SCHEME
from tinkex.wire.limits import JSON_TYPE

T = TypeVar("T")
D = TypeVar("D", bound=Declared)


_CHEAPER = 4
"""Cost of reading a character of a body, relative to rendering or tokenizing it."""


class Endpoints:
    """The parts behind these routes, over one core."""

    def __init__(self, core: Core) -> None:
        self.targets = Targets(core.engines, core.checkpoints, core.weights)
        lanes, admission = core.sampling.lanes, core.sampling.admission
        self.draws = Draws(lanes, admission, core.meter, core.samples)
        self.texts = Texts()

    def close(self) -> None:
        self.texts.close()


def endpoints_of(request: Request) -> Endpoints:
    """Made for the first request that comes; `routes.close` closes them."""
    state = request.app.state
    if not hasattr(state, "endpoints"):
        state.endpoints = Endpoints(core_of(request))
    found: Endpoints = state.endpoints
    return found


async def read(request: Request, kind: type[D]) -> tuple[D, int]:
    """The body as a declared request, and its size; large ones are read off the event loop."""
    tenant_of(request)  # nobody's body is read before their key
    async with received(request) as body:
        size = len(body) // _CHEAPER
        return await work_on_text(request, size, partial(kind.read, body)), len(body)


async def work_on_text(
    request: Request, size: int, work: Callable[[], T], param: str | None = None
) -> T:
    """Do long work on a request's text of so many characters, in its tenant's turn. Text that the
    model cannot be given is refused; `param` is the field it came in."""
    try:
        return await endpoints_of(request).texts.work(tenant_of(request), size, work)
    except TokenizerError as error:
        raise Unfit(str(error), param) from None


async def answered(
    request: Request, size: int, make: Callable[[], Mapping[str, Any]], target: Target
) -> Response:
    """An answer by these weights with so many tokens and logprobs, made and written in its tenant's
    turn, off the event loop if it is long."""
    body = await work_on_text(request, size, lambda: written(make()))
    return Response(body, headers=target.headers, media_type=JSON_TYPE)


async def target_of(request: Request, name: str) -> Target:
    """The weights that a request names, if its key may use them."""
    bearer = await bearer_of(request, name) if name.startswith(SCHEME) else None
    return await endpoints_of(request).targets.find(tenant_of(request), name, bearer)


def new_id(prefix: str) -> str:
    """`prefix` as the API in question begins such names, with its hyphen or underscore."""
    return f"{prefix}{secrets.token_hex(12)}"
