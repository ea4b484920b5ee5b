"""The routes of these endpoints, each under every path that clients know it by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.endpoints.completions import completions
from tinkex.server.endpoints.errors import openai_refused
from tinkex.server.http.exchange import Handler, guarded
from tinkex.server.refusals import Refusal

OPENAI = ("/v1", "/oai/api/v1")
ANTHROPIC = ("/v1", "/anthropic/api/v1")


def _under(
    prefixes: Sequence[str],
    method: str,
    path: str,
    handler: Handler,
    refused: Callable[[Refusal], Response],
) -> list[Route]:
    return [
        Route(prefix + path, guarded(handler, prefix + path, refused), methods=[method])
        for prefix in prefixes
    ]


ROUTES: list[Any] = [
    *_under(OPENAI, "POST", "/completions", completions, openai_refused),
]
