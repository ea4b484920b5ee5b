"""The routes of these endpoints, each under every path that clients know it by.

What answers them is loaded when it is first asked: a server starts without it, and many are never
asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from tinkex.server.endpoints.errors import (
    AnthropicRefused,
    OpenAIRefused,
    anthropic_refused,
    openai_refused,
)
from tinkex.server.endpoints.event_stream import CONTENT_TYPE
from tinkex.server.endpoints.openai.model_pages import model_page
from tinkex.server.http.exchange import Handler
from tinkex.server.http.queries import Query
from tinkex.server.http.routing import ApiRoute, Contract
from tinkex.server.protocol.reading import Reader
from tinkex.server.refusals import Refusal

if TYPE_CHECKING:
    from tinkex.server.endpoints.declared import Declared

Load: TypeAlias = "Callable[[], tuple[Handler, type[Declared] | None]]"
"""Finds a handler and the type of what it reads."""

OPENAI = ("/v1", "/oai/api/v1")
ANTHROPIC = ("/v1", "/anthropic/v1", "/anthropic/api/v1")
OPEN = (*OPENAI, "")
"""Some clients look for a server's tokenizer beside its API, not below it."""

_JSON = (dict[str, Any],)
_STREAMED = (dict[str, Any], CONTENT_TYPE)


class _Later:
    """A handler that is found when it is first asked, or asked what it does."""

    def __init__(self, load: Load) -> None:
        self._load = load

    @cached_property
    def _found(self) -> Handler:
        return self._load()[0]

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # a property, as it is looked up when it is asked for
        return self._found.__doc__

    async def __call__(self, request: Request) -> Response:
        return await self._found(request)


def _reader(load: Load) -> Reader[Any]:
    def kind() -> type[Declared]:
        found = load()[1]
        assert found is not None
        return found

    return Reader(kind)


class _Style(NamedTuple):
    """Whose clients a route is for: how they are refused, and below which paths they look."""

    shape: type[BaseModel]
    refuse: Callable[[Refusal], Response]
    paths: Sequence[str]

    def __call__(
        self,
        method: str,
        path: str,
        load: Load,
        answers: tuple[Any, ...] = _JSON,
        under: Sequence[str] = (),
        asks: Callable[[Query], object] | None = None,
    ) -> list[ApiRoute]:
        """The route under each of its paths, or of those in `under`."""
        contract = Contract(
            _reader(load) if method == "POST" else None,
            asks,
            {200: answers, 400: (self.shape,)},
            refused=self.shape,
        )
        handler, bases = _Later(load), under or self.paths
        return [ApiRoute(base + path, handler, method, contract, self.refuse) for base in bases]


_openai = _Style(OpenAIRefused, openai_refused, OPENAI)
_anthropic = _Style(AnthropicRefused, anthropic_refused, ANTHROPIC)


def _about_model(query: Query) -> str | None:
    return query.optional_text("model")


def _completions() -> tuple[Handler, type[Declared]]:
    from tinkex.server.endpoints.openai.completions import CompletionRequest, completions

    return completions, CompletionRequest


def _chat() -> tuple[Handler, type[Declared]]:
    from tinkex.server.endpoints.openai.chat import chat_completions
    from tinkex.server.endpoints.openai.chat_request import ChatRequest

    return chat_completions, ChatRequest


def _responses() -> tuple[Handler, type[Declared]]:
    from tinkex.server.endpoints.openai.responses import responses
    from tinkex.server.endpoints.openai.responses_request import ResponsesRequest

    return responses, ResponsesRequest


def _messages() -> tuple[Handler, type[Declared]]:
    from tinkex.server.endpoints.anthropic.messages import messages
    from tinkex.server.endpoints.anthropic.messages_request import MessagesRequest

    return messages, MessagesRequest


def _count_tokens() -> tuple[Handler, type[Declared]]:
    from tinkex.server.endpoints.anthropic.messages import count_tokens
    from tinkex.server.endpoints.anthropic.messages_request import CountRequest

    return count_tokens, CountRequest


def _list_models() -> tuple[Handler, None]:
    from tinkex.server.endpoints.openai.models import list_models

    return list_models, None


def _get_model() -> tuple[Handler, None]:
    from tinkex.server.endpoints.openai.models import get_model

    return get_model, None


def _tokenize() -> tuple[Handler, type[Declared]]:
    from tinkex.server.endpoints.openai.tokens import TokenizeRequest, tokenize

    return tokenize, TokenizeRequest


def _detokenize() -> tuple[Handler, type[Declared]]:
    from tinkex.server.endpoints.openai.tokens import DetokenizeRequest, detokenize

    return detokenize, DetokenizeRequest


def _tokenizer_info() -> tuple[Handler, None]:
    from tinkex.server.endpoints.openai.tokens import tokenizer_info

    return tokenizer_info, None


def close(app: Starlette) -> None:
    """Ends what was made for the requests of an application, if there were any."""
    if hasattr(app.state, "endpoints"):
        app.state.endpoints.close()


_BESIDE_OPENAI = [each for each in ANTHROPIC if each not in OPENAI]

ROUTES: list[ApiRoute] = [
    *_openai("POST", "/completions", _completions, _STREAMED),
    *_openai("POST", "/chat/completions", _chat, _STREAMED),
    *_openai("POST", "/responses", _responses, _STREAMED),
    *_anthropic("POST", "/messages", _messages, _STREAMED),
    *_anthropic("POST", "/messages/count_tokens", _count_tokens),
    *_openai("GET", "/models", _list_models, asks=model_page),
    *_openai("GET", "/models/{model_name:path}", _get_model),
    *_anthropic("GET", "/models", _list_models, under=_BESIDE_OPENAI, asks=model_page),
    *_anthropic("GET", "/models/{model_name:path}", _get_model, under=_BESIDE_OPENAI),
    *_openai("POST", "/tokenize", _tokenize, under=OPEN),
    *_openai("POST", "/detokenize", _detokenize, under=OPEN),
    *_openai("GET", "/tokenizer_info", _tokenizer_info, under=OPEN, asks=_about_model),
]
