"""What POST /responses answers: a response of items, whole or event by event.

response.created, response.in_progress, then for each item response.output_item.added, its
deltas and what they came to, response.output_item.done; response.completed or .incomplete
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from tinkex.engine.messages import SampleResult
from tinkex.server.endpoints.conversations import Talk
from tinkex.server.endpoints.draws import likeliest
from tinkex.server.endpoints.errors import openai_error
from tinkex.server.endpoints.event_stream import BEAT, event
from tinkex.server.endpoints.openai.chat_answers import entries
from tinkex.server.endpoints.openai.response_items import Items
from tinkex.server.endpoints.openai.responses_request import ResponsesRequest
from tinkex.server.endpoints.service import new_id
from tinkex.server.refusals import Refusal
from tinkex.text.formats.pieces import Piece


class ResponseAnswer:
    """One answer in the making."""

    def __init__(self, asked: ResponsesRequest, talk: Talk) -> None:
        self._asked = asked
        self._talk = talk
        self._items = Items()
        self._numbers = 0
        self._head = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "model": asked.model,
            "tinkex": {"weights": talk.target.told},
            **_said_back(asked),
        }

    def whole(self, result: SampleResult) -> dict[str, Any]:
        answer = self._talk.answer()
        for piece in (*answer.add(result.sequences[0].tokens.tolist()), *answer.end()):
            for _ in self._items.take(piece):
                pass
        return self._ended(result)

    async def events(self) -> AsyncGenerator[bytes, None]:
        draw, answer = self._talk.draw, self._talk.answer()
        try:
            begun = {**self._head, "status": "in_progress", "output": []}
            yield self._event({"type": "response.created", "response": begun})
            yield self._event({"type": "response.in_progress", "response": begun})
            async for news in draw.news():
                if news is None:
                    yield BEAT
                    continue
                if self._asked.scored:
                    drawn = news.tokens, news.logprobs, news.best
                    self._items.draw(entries(self._talk.text, *drawn))
                for each in self._told(answer.add(news.tokens)):
                    yield each
            result = (await draw.results())[0]
            for each in self._told(answer.end()):
                yield each
            for values in self._items.close(_status(result)):
                yield self._event(values)
            ended = self._ended(result)
            yield self._event({"type": f"response.{ended['status']}", "response": ended})
        except Refusal as refusal:
            yield self._event({**openai_error(refusal)["error"], "type": "error"})
        finally:
            draw.close()

    def _told(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        for piece in pieces:
            for values in self._items.take(piece):
                yield self._event(values)

    def _event(self, values: dict[str, Any]) -> bytes:
        number, self._numbers = self._numbers, self._numbers + 1
        return event({**values, "sequence_number": number}, values["type"])

    def _ended(self, result: SampleResult) -> dict[str, Any]:
        for _ in self._items.close(_status(result)):
            pass
        sequence, status = result.sequences[0], _status(result)
        if self._asked.scored:
            tokens, best = sequence.tokens.tolist(), likeliest(sequence.topk)
            self._items.score(entries(self._talk.text, tokens, sequence.logprobs, best))
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._head,
            "status": status,
            "incomplete_details": cut,
            "completed_at": int(time.time()),
            "output": self._items.done,
            "usage": self._usage(result),
        }

    def _usage(self, result: SampleResult) -> dict[str, Any]:
        read, drawn = len(self._talk.chat.tokens), len(result.sequences[0].tokens)
        thoughts = len(self._talk.text.encode(self._items.reasoning, False))
        return {
            "input_tokens": read,
            "input_tokens_details": {
                "cached_tokens": result.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": drawn,
            "output_tokens_details": {"reasoning_tokens": min(thoughts, drawn)},
            "total_tokens": read + drawn,
        }


def _status(result: SampleResult) -> str:
    """Of the response, and of the item that was open when it ended."""
    return "incomplete" if result.sequences[0].stop_reason == "length" else "completed"


def _said_back(asked: ResponsesRequest) -> dict[str, Any]:
    """What that API repeats of a request."""
    given = asked.model_dump(by_alias=True, exclude_none=True)
    names = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "temperature")
    others = ("top_p", "tool_choice", "tools", "top_logprobs", "text", "reasoning")
    found = {name: given.get(name) for name in (*names, *others)}
    nothing = {"error": None, "incomplete_details": None, "previous_response_id": None}
    return {**found, **nothing, "store": False, "truncation": "disabled", "background": False}
