"""What becomes of every parameter that the installed clients document, as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anthropic
import openai
from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from tinkex.server.endpoints.anthropic.messages_request import CountRequest, MessagesRequest
from tinkex.server.endpoints.declared import Declared
from tinkex.server.endpoints.openai.chat_request import ChatRequest
from tinkex.server.endpoints.openai.completions import CompletionRequest
from tinkex.server.endpoints.openai.responses_request import ResponsesRequest
from tinkex.server.endpoints.openai.tokens import DetokenizeRequest, TokenizeRequest

PATH = Path(__file__).parents[2] / "docs" / "clients" / "parameters.md"
_OURS = frozenset[str]()
REQUESTS: Mapping[str, tuple[type[Declared], frozenset[str]]] = {
    "POST /v1/completions": (
        CompletionRequest,
        frozenset(completion_create_params.CompletionCreateParamsBase.__annotations__) | {"stream"},
    ),
    "POST /v1/chat/completions": (
        ChatRequest,
        frozenset(chat_create_params.CompletionCreateParamsBase.__annotations__) | {"stream"},
    ),
    "POST /v1/responses": (
        ResponsesRequest,
        frozenset(response_create_params.ResponseCreateParamsBase.__annotations__) | {"stream"},
    ),
    "POST /v1/messages": (
        MessagesRequest,
        frozenset(message_create_params.MessageCreateParamsBase.__annotations__) | {"stream"},
    ),
    "POST /v1/messages/count_tokens": (
        CountRequest,
        frozenset(message_count_tokens_params.MessageCountTokensParams.__annotations__),
    ),
    "POST /v1/tokenize": (TokenizeRequest, _OURS),
    "POST /v1/detokenize": (DetokenizeRequest, _OURS),
}
"""Route -> what it reads, and what the client's own types document."""

_VERSIONS = f"`openai` {openai.__version__} and `anthropic` {anthropic.__version__}"
HEADING = f"""# Parameters

This page is written by the test suite (`tests/endpoints`) from the types the server reads requests
as and from those of {_VERSIONS}. Every parameter that these
document is honoured or refused by name with status 400; so is every name that nobody documents. A
*label* tells a provider who asks, or for what: it is taken, and no answer depends on it. Names in
*italics* are beside the client's own: send them with `extra_body`.
"""


def names_of(kind: type[Declared]) -> set[str]:
    """The fields a request may have, as they are written."""
    return {field.alias or name for name, field in kind.model_fields.items()}


def render() -> str:
    sections = [f"## {route}\n\n{_table(*known)}" for route, known in REQUESTS.items()]
    return "\n".join([HEADING, *sections])


def _table(kind: type[Declared], documented: frozenset[str]) -> str:
    rows = ["| parameter | |", "|---|---|"]
    for name in sorted(names_of(kind) | {*kind.labels, *kind.refused}):
        shown = f"`{name}`" if name in documented or not documented else f"*`{name}`*"
        rows.append(f"| {shown} | {_fate(kind, name)} |")
    return "\n".join(rows) + "\n"


def _fate(kind: type[Declared], name: str) -> str:
    if name in kind.labels:
        return "label"
    refused = kind.refused.get(name)
    if refused is None:
        return "honoured"
    fine = ", ".join(f"`{value}`" for value in refused.unless if value != 0.0 or value is False)
    return f"refused{f' unless {fine}' if fine else ''}: {refused.why}"
