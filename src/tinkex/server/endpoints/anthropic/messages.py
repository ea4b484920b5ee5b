"""POST /messages and /messages/count_tokens: the Anthropic-style conversation."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tinkex.server.endpoints.anthropic.message_answers import MessageAnswer
from tinkex.server.endpoints.anthropic.messages_request import CountRequest, MessagesRequest
from tinkex.server.endpoints.conversations import begin, rendered
from tinkex.server.endpoints.draws import cells
from tinkex.server.endpoints.event_stream import EventStream
from tinkex.server.endpoints.service import answered, read
from tinkex.server.http.exchange import answer


async def messages(request: Request) -> Response:
    """Answer a conversation."""
    asked, size = await read(request, MessagesRequest)
    talk = await begin(request, asked.conversation(size))
    made = MessageAnswer(asked, talk)
    if asked.stream:
        return EventStream(made.events(), talk.target.headers)
    result = await talk.result(request)
    return await answered(request, cells([result]), lambda: made.whole(result), talk.target)


async def count_tokens(request: Request) -> Response:
    """How long a conversation is to the model."""
    asked, size = await read(request, CountRequest)
    target, _, chat = await rendered(request, asked.conversation(size))
    return answer({"input_tokens": len(chat.tokens)}, headers=target.headers)
