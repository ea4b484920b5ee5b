"""Answers from a script instead of a server, and a record of what was asked. For tests."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable

from tinkex.client.http import HttpRequest, HttpResponse, TransportError

Answer = HttpResponse | Exception
Script = Callable[[HttpRequest], Answer | Awaitable[Answer]]


class ScriptedTransport:
    """Give it answers in order, or a function from request to answer.

    An exception in the script is raised. When a list of answers runs out, requests fail.
    """

    def __init__(self, script: Script | Iterable[Answer]) -> None:
        self._script = script if callable(script) else _in_order(script)
        self.requests: list[HttpRequest] = []
        self.closed = False

    async def request(self, request: HttpRequest) -> HttpResponse:
        if self.closed:
            raise TransportError("the transport is closed")
        self.requests.append(request)
        answer = self._script(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self) -> None:
        self.closed = True


def _in_order(answers: Iterable[Answer]) -> Script:
    remaining = iter(answers)

    def script(request: HttpRequest) -> Answer:
        return next(remaining, TransportError(f"no answer scripted for {request.url}"))

    return script
