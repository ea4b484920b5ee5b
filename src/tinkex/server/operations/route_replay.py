"""Route replay: training on a sampled sequence sends its tokens where the sampler sent them.

On for data that bring the sampler's logprobs, as those of reinforcement losses do; a call says
otherwise with `replay_routes` in its loss's settings, 0 for off and 1 for on. Where the model has
no experts, or nothing is kept of a sequence, it changes nothing.

The routes that a call replayed are made durable with its result: when it is repeated after a loss,
it takes those, whatever is kept of its sequences by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tinkex.engine.messages import Datum
from tinkex.server.operations.log import Entry
from tinkex.server.protocol.forward_codec import ForwardRequest
from tinkex.server.protocol.route_codec import decode_routes, encode_routes
from tinkex.server.refusals import Refusal
from tinkex.server.sampling.kept_routes import KeptRoutes, digest

SETTING = "replay_routes"
_FEW_TOKENS = 65_536


async def with_routes(
    request: ForwardRequest, entry: Entry, kept: KeptRoutes, tenant: str, model: str
) -> ForwardRequest:
    """The request with the kept routes of its sequences in this model, and without the setting. A
    repeated operation gets the routes of the first time instead.
    """
    config = dict(request.loss_config)
    asked = config.pop(SETTING, None)
    if asked not in (None, 0, 1):
        raise Refusal(f"loss_fn_config: {SETTING} must be 0 or 1, not {asked!r}")
    wanted = asked == 1 if asked is not None else _sampled(request.data)
    request = request._replace(loss_config=config)
    if entry.replay:
        if entry.routes is None:
            return request
        first = await asyncio.to_thread(decode_routes, entry.routes)
        pairs = zip(request.data, first, strict=True)
        return request._replace(data=tuple(replace(datum, routes=own) for datum, own in pairs))
    if not wanted or not kept.nbytes:
        return request
    few = request.tokens <= _FEW_TOKENS
    naming = partial(_names, model, request.data)
    names = naming() if few else await asyncio.to_thread(naming)
    data = [
        _replayed(datum, kept, tenant, own) for datum, own in zip(request.data, names, strict=True)
    ]
    return request._replace(data=tuple(data))


async def encoded_routes(request: ForwardRequest) -> bytes | None:
    """The routes of a request's data as they are stored; None if there are none."""
    if all(datum.routes is None for datum in request.data):
        return None
    return await asyncio.to_thread(encode_routes, [datum.routes for datum in request.data])


def _sampled(data: Sequence[Datum]) -> bool:
    return any("logprobs" in datum.inputs for datum in data)


def _names(model: str, data: Sequence[Datum]) -> list[tuple[bytes, bytes]]:
    """The names under which a datum's routes may be kept: usually its last token is the sample's
    last but one, but some data includes the last one too."""
    return [(digest(model, datum.tokens), digest(model, datum.tokens[:-1])) for datum in data]


def _replayed(datum: Datum, kept: KeptRoutes, tenant: str, names: tuple[bytes, bytes]) -> Datum:
    routes = kept.find(tenant, names)
    return datum if routes is None else replace(datum, routes=routes)
