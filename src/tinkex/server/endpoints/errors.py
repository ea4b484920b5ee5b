"""Errors in the two shapes that clients of these APIs read.

    OpenAI      {"error": {"message", "type", "code", "param"}}
    Anthropic   {"type": "error", "error": {"type", "message"}, "request_id"}

An invalid body is a 400 here, which these clients expect.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from starlette.responses import Response

from tinkex.server.engines.engine import CommandFailed
from tinkex.server.http.answers import Answer
from tinkex.server.http.exchange import answer
from tinkex.server.refusals import Refusal
from tinkex.wire.limits import HEADER_RETRY_AFTER

_OPENAI_TYPES: Mapping[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("authentication_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    405: ("invalid_request_error", None),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("server_error", "overloaded"),
}
_ANTHROPIC_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_NAMED = re.compile(r"([a-z_]{2,40}): ")
_FIELDS = {
    "allowed_tokens": "allowed_token_ids",
    "num_samples": "n",
    "topk_prompt_logprobs": "logprobs",
    "topk_sample_logprobs": "top_logprobs",
}
"""What clients call fields that the engine names differently."""
_CONTEXT = "context_length_exceeded"


class OpenAIProblem(Answer):
    message: str
    type: str
    code: str | None
    param: str | None


class OpenAIRefused(Answer):
    """Why a request is not served, as OpenAI's clients read it."""

    error: OpenAIProblem


class AnthropicProblem(Answer):
    type: str
    message: str


class AnthropicRefused(Answer):
    """Why a request is not served, as Anthropic's clients read it."""

    type: Literal["error"]
    error: AnthropicProblem


class Unfit(Refusal):
    """A request these routes cannot serve; `param` is the field that is wrong."""

    status = 400

    def __init__(self, detail: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(detail)
        self.param = param
        self.code = code


class Unserved(Refusal):
    """A path or method that does not exist below a base address of these APIs."""

    code = "unknown_url"

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Failure(Refusal):
    """The engine could not finish what it had begun."""

    status = 500


def from_engine(failed: CommandFailed, grammar: str = "grammar") -> Refusal:
    """The engine's failure as a refusal; its own faults are not the client's. `grammar` is the
    field that the sample's came from."""
    if failed.kind != "user":
        return Failure(failed.message)
    named, message = _NAMED.match(failed.message), failed.message
    names = {**_FIELDS, "grammar": grammar}
    if message.startswith("stop: id "):
        names["stop"] = "stop_token_ids"
    field = names.get(named[1], named[1]) if named else None
    if named and field != named[1]:
        message = f"{field}: {message[named.end() :]}"
    code = _CONTEXT if "context window" in message else None
    return Unfit(message, field, code)


def openai_error(refusal: Refusal) -> dict[str, Any]:
    kind, code = _OPENAI_TYPES.get(_status(refusal), ("server_error", None))
    found = {
        "message": refusal.detail,
        "type": kind,
        "code": getattr(refusal, "code", None) or code,
        "param": getattr(refusal, "param", None),
    }
    return {"error": found}


def anthropic_error(refusal: Refusal) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(_status(refusal), "api_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.detail}}


def openai_refused(refusal: Refusal) -> Response:
    return _answer(openai_error(refusal), refusal)


def anthropic_refused(refusal: Refusal) -> Response:
    return _answer(anthropic_error(refusal), refusal)


def _answer(values: Mapping[str, Any], refusal: Refusal) -> Response:
    response = answer(values, _status(refusal))
    if refusal.retry_after is not None:
        response.headers[HEADER_RETRY_AFTER] = str(math.ceil(refusal.retry_after))
    return response


def _status(refusal: Refusal) -> int:
    return 400 if refusal.status == Refusal.status else refusal.status
