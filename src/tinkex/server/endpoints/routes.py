"""The routes of these endpoints, each under every path that clients know it by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tinkex.server.endpoints.anthropic.messages import count_tokens, messages
from tinkex.server.endpoints.errors import anthropic_refused, openai_refused
from tinkex.server.endpoints.openai.chat import chat_completions
from tinkex.server.endpoints.openai.completions import completions
from tinkex.server.endpoints.openai.models import get_model, list_models
from tinkex.server.endpoints.openai.responses import responses
from tinkex.server.endpoints.openai.tokens import detokenize, tokenize, tokenizer_info
from tinkex.server.http.exchange import Handler, guarded
from tinkex.server.refusals import Refusal

OPENAI = ("/v1", "/oai/api/v1")
ANTHROPIC = ("/v1", "/anthropic/v1", "/anthropic/api/v1")
OPEN = (*OPENAI, "")
"""Some clients look for a server's tokenizer beside its API, not below it."""


def _under(
    prefixes: Sequence[str],
    method: str,
    path: str,
    handler: Handler,
    refused: Callable[[Refusal], Response] = openai_refused,
) -> list[BaseRoute]:
    return [
        Route(prefix + path, guarded(handler, prefix + path, refused), methods=[method])
        for prefix in prefixes
    ]


ROUTES: list[BaseRoute] = [
    *_under(OPENAI, "POST", "/completions", completions),
    *_under(OPENAI, "POST", "/chat/completions", chat_completions),
    *_under(OPENAI, "POST", "/responses", responses),
    *_under(ANTHROPIC, "POST", "/messages", messages, anthropic_refused),
    *_under(ANTHROPIC, "POST", "/messages/count_tokens", count_tokens, anthropic_refused),
    *_under([*OPENAI, "/anthropic/api/v1"], "GET", "/models", list_models),
    *_under([*OPENAI, "/anthropic/api/v1"], "GET", "/models/{model_name:path}", get_model),
    *_under(OPEN, "POST", "/tokenize", tokenize),
    *_under(OPEN, "POST", "/detokenize", detokenize),
    *_under(OPEN, "GET", "/tokenizer_info", tokenizer_info),
]
