"""The routes of these endpoints, each under every path that clients know it by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinkex.server.endpoints.anthropic.messages import count_tokens, messages
from tinkex.server.endpoints.anthropic.messages_request import CountRequest, MessagesRequest
from tinkex.server.endpoints.declared import Declared
from tinkex.server.endpoints.errors import (
    AnthropicRefused,
    OpenAIRefused,
    anthropic_refused,
    openai_refused,
)
from tinkex.server.endpoints.event_stream import CONTENT_TYPE
from tinkex.server.endpoints.openai.chat import chat_completions
from tinkex.server.endpoints.openai.chat_request import ChatRequest
from tinkex.server.endpoints.openai.completions import CompletionRequest, completions
from tinkex.server.endpoints.openai.models import get_model, list_models
from tinkex.server.endpoints.openai.responses import responses
from tinkex.server.endpoints.openai.responses_request import ResponsesRequest
from tinkex.server.endpoints.openai.tokens import (
    DetokenizeRequest,
    TokenizeRequest,
    detokenize,
    tokenize,
    tokenizer_info,
)
from tinkex.server.http.exchange import Handler
from tinkex.server.http.queries import Query
from tinkex.server.http.routing import ApiRoute, Contract
from tinkex.server.protocol.reading import Reader

OPENAI = ("/v1", "/oai/api/v1")
ANTHROPIC = ("/v1", "/anthropic/v1", "/anthropic/api/v1")
OPEN = (*OPENAI, "")
"""Some clients look for a server's tokenizer beside its API, not below it."""

_JSON = (dict[str, Any],)
_STREAMED = (dict[str, Any], CONTENT_TYPE)


def _openai(
    method: str,
    path: str,
    handler: Handler,
    reads: type[Declared] | None = None,
    answers: tuple[Any, ...] = _JSON,
    under: Sequence[str] = OPENAI,
    asks: Callable[[Query], object] | None = None,
) -> list[ApiRoute]:
    contract = Contract(
        None if reads is None else Reader(lambda: reads),
        asks,
        {200: answers, 400: (OpenAIRefused,)},
        refused=OpenAIRefused,
    )
    return [ApiRoute(each + path, handler, method, contract, openai_refused) for each in under]


def _anthropic(
    path: str, handler: Handler, reads: type[Declared], answers: tuple[Any, ...] = _JSON
) -> list[ApiRoute]:
    statuses = {200: answers, 400: (AnthropicRefused,)}
    contract = Contract(Reader(lambda: reads), None, statuses, refused=AnthropicRefused)
    return [
        ApiRoute(each + path, handler, "POST", contract, anthropic_refused) for each in ANTHROPIC
    ]


def _about_model(query: Query) -> str | None:
    return query.optional_text("model")


_MODELS = (*OPENAI, "/anthropic/api/v1")

ROUTES: list[ApiRoute] = [
    *_openai("POST", "/completions", completions, CompletionRequest, _STREAMED),
    *_openai("POST", "/chat/completions", chat_completions, ChatRequest, _STREAMED),
    *_openai("POST", "/responses", responses, ResponsesRequest, _STREAMED),
    *_anthropic("/messages", messages, MessagesRequest, _STREAMED),
    *_anthropic("/messages/count_tokens", count_tokens, CountRequest),
    *_openai("GET", "/models", list_models, under=_MODELS),
    *_openai("GET", "/models/{model_name:path}", get_model, under=_MODELS),
    *_openai("POST", "/tokenize", tokenize, TokenizeRequest, under=OPEN),
    *_openai("POST", "/detokenize", detokenize, DetokenizeRequest, under=OPEN),
    *_openai("GET", "/tokenizer_info", tokenizer_info, under=OPEN, asks=_about_model),
]
