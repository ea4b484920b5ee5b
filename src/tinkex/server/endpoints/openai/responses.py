"""POST /responses, without any state on the server."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tinkex.server.endpoints.conversations import begin
from tinkex.server.endpoints.draws import cells
from tinkex.server.endpoints.event_stream import EventStream
from tinkex.server.endpoints.openai.response_answers import ResponseAnswer
from tinkex.server.endpoints.openai.responses_request import ResponsesRequest
from tinkex.server.endpoints.service import answered, read


async def responses(request: Request) -> Response:
    """Answer a conversation."""
    asked, size = await read(request, ResponsesRequest)
    talk = await begin(request, asked.conversation(size))
    made = ResponseAnswer(asked, talk)
    if asked.stream:
        return EventStream(made.events(), talk.target.headers)
    result = await talk.result(request)
    return await answered(request, cells([result]), lambda: made.whole(result), talk.target)
