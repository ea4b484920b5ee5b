"""What POST /messages answers: a message of blocks, whole or event by event.

message_start, then for each block content_block_start, content_block_delta…,
content_block_stop, then message_delta and message_stop; ping where there is nothing to tell
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from tinkex.engine.messages import SampleResult
from tinkex.server.endpoints.anthropic.messages_request import MessagesRequest
from tinkex.server.endpoints.conversations import Answer, Talk
from tinkex.server.endpoints.errors import anthropic_error
from tinkex.server.endpoints.event_stream import event
from tinkex.server.endpoints.service import new_id
from tinkex.server.refusals import Refusal
from tinkex.text.formats.pieces import Arguments, Call, Content, Piece, Reasoning

_PING = {"type": "ping"}


class MessageAnswer:
    """One answer in the making."""

    def __init__(self, asked: MessagesRequest, talk: Talk) -> None:
        self._asked = asked
        self._talk = talk
        self._id = new_id("msg_")

    def whole(self, result: SampleResult) -> dict[str, Any]:
        answer = self._talk.answer()
        pieces = [*answer.add(result.sequences[0].tokens.tolist()), *answer.end()]
        blocks = blocks_of(pieces)
        called = any(block["type"] == "tool_use" for block in blocks)
        return {**self._message(blocks), **self._end(result, answer, called), **self._told()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        draw, answer, blocks = self._talk.draw, self._talk.answer(), _Blocks()
        try:
            start = {**self._message([]), "stop_reason": None, "stop_sequence": None}
            usage = {"usage": self._usage(0, 0)}
            yield _event({"type": "message_start", "message": {**start, **usage, **self._told()}})
            async for news in draw.news():
                if news is None:
                    yield _event(_PING)
                    continue
                for each in blocks.events(answer.add(news.tokens)):
                    yield _event(each)
            result = (await draw.results())[0]
            for each in (*blocks.events(answer.end()), *blocks.end()):
                yield _event(each)
            end = self._end(result, answer, blocks.called)
            usage = {"usage": end.pop("usage")}
            yield _event({"type": "message_delta", "delta": end, **usage})
            yield _event({"type": "message_stop"})
        except Refusal as refusal:
            yield _event(anthropic_error(refusal))
        finally:
            draw.close()

    def _message(self, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant"}
        return {**head, "model": self._asked.model, "content": blocks}

    def _told(self) -> dict[str, Any]:
        return {"tinkex": {"weights": self._talk.target.told}}

    def _end(self, result: SampleResult, answer: Answer, called: bool) -> dict[str, Any]:
        sequence = result.sequences[0]
        reason = "tool_use" if called else "end_turn"
        if sequence.stop_reason == "length":
            reason = "max_tokens"
        elif answer.stopped_by is not None:
            reason = "stop_sequence"
        usage = self._usage(len(sequence.tokens), result.cached_tokens)
        return {"stop_reason": reason, "stop_sequence": answer.stopped_by, "usage": usage}

    def _usage(self, drawn: int, cached: int) -> dict[str, Any]:
        """Input tokens are those that were not cached, as that API has it."""
        return {
            "input_tokens": len(self._talk.chat.tokens) - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": drawn,
        }


class _Blocks:
    """Pieces as the events of blocks: one is open at a time."""

    def __init__(self) -> None:
        self._count = 0
        self._open: str | None = None
        self.called = False

    def events(self, pieces: Sequence[Piece]) -> Iterator[dict[str, Any]]:
        for piece in pieces:
            kind = _KINDS[type(piece)]
            if isinstance(piece, Call) or kind != self._open:
                yield from self.end()
                yield self._start(kind, piece)
            if not isinstance(piece, Call):
                name, field = _DELTAS[kind]
                delta = {"type": name, field: piece.text}
                yield {"type": "content_block_delta", "index": self._count, "delta": delta}

    def end(self) -> Iterator[dict[str, Any]]:
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            yield {"type": "content_block_delta", "index": self._count, "delta": delta}
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._count}
            self._count += 1
        self._open = None

    def _start(self, kind: str, piece: Piece) -> dict[str, Any]:
        self._open = kind
        self.called = self.called or kind == "tool_use"
        block = _block(kind, piece.name if isinstance(piece, Call) else "")
        return {"type": "content_block_start", "index": self._count, "content_block": block}


_KINDS = {Content: "text", Reasoning: "thinking", Call: "tool_use", Arguments: "tool_use"}
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def blocks_of(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """The blocks that pieces make."""
    blocks: list[dict[str, Any]] = []
    written: list[str] = []
    for piece in pieces:
        kind = _KINDS[type(piece)]
        if isinstance(piece, Call) or not blocks or blocks[-1]["type"] != kind:
            blocks.append(_block(kind, piece.name if isinstance(piece, Call) else ""))
            written.append("")
        if not isinstance(piece, Call):
            written[-1] += piece.text
    for block, text in zip(blocks, written, strict=True):
        if block["type"] == "tool_use":
            block["input"] = _input(text)
        else:
            block[block["type"]] = text
    return blocks


def _block(kind: str, name: str) -> dict[str, Any]:
    if kind == "tool_use":
        return {"type": kind, "id": new_id("toolu_"), "name": name, "input": {}}
    return {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}


def _input(text: str) -> dict[str, Any]:
    """Arguments that were cut off are none: that API has objects only."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {"value": value}


def _event(values: dict[str, Any]) -> bytes:
    return event(values, values["type"])
