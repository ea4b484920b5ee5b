"""POST /chat/completions: messages in, through the model's own chat template; a message out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tinkex.server.endpoints.conversations import begin
from tinkex.server.endpoints.draws import cells
from tinkex.server.endpoints.event_stream import EventStream
from tinkex.server.endpoints.openai.chat_answers import ChatCompletion
from tinkex.server.endpoints.openai.chat_request import ChatRequest
from tinkex.server.endpoints.service import answered, read


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    asked, size = await read(request, ChatRequest)
    talk = await begin(request, asked.conversation(size))
    made = ChatCompletion(asked, talk)
    if asked.stream:
        return EventStream(made.events(), talk.target.headers)
    result = await talk.result(request)
    return await answered(request, cells([result]), lambda: made.whole(result), talk.target)
