"""What POST /chat/completions answers: whole, or chunk by chunk as tokens are drawn."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from tinkex.engine.messages import SampleResult
from tinkex.engine.messages import Sequence as Drawn
from tinkex.server.endpoints.conversations import Talk
from tinkex.server.endpoints.draws import Best, News, likeliest
from tinkex.server.endpoints.errors import openai_error
from tinkex.server.endpoints.event_stream import BEAT, DONE, Chunks, event
from tinkex.server.endpoints.openai.chat_request import ChatRequest
from tinkex.server.endpoints.openai.usage import openai_usage
from tinkex.server.endpoints.service import new_id
from tinkex.server.refusals import Refusal
from tinkex.text.formats.pieces import Arguments, Call, Content, Piece, Reasoning
from tinkex.text.model_text import ModelText


class ChatCompletion:
    """One answer in the making."""

    def __init__(self, asked: ChatRequest, talk: Talk) -> None:
        self._asked = asked
        self._talk = talk
        self._head = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": asked.model}
        self._chunks = Chunks({**self._head, "object": "chat.completion.chunk"})
        self._tail: dict[str, Any] = {"tinkex": {"weights": talk.target.told}}
        if asked.return_token_ids:
            self._tail["prompt_token_ids"] = talk.chat.tokens

    def whole(self, result: SampleResult) -> dict[str, Any]:
        choices = [self._choice(place, each) for place, each in enumerate(result.sequences)]
        usage = self._usage(result)
        kind = {"object": "chat.completion"}
        return {**self._head, **kind, "choices": choices, "usage": usage, **self._tail}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Chunks until all sequences have ended, then what was used if that was asked for."""
        talk, tail = self._talk, self._tail
        choices = [_StreamedChoice(self._asked, talk, place) for place in range(self._asked.n)]
        try:
            async for news in talk.draw.news():
                if news is None:
                    yield BEAT
                    continue
                for part in choices[news.index].parts(news):
                    yield self._chunk([part], tail)
                    tail = {}
            result = (await talk.draw.results())[0]
            for choice, sequence in zip(choices, result.sequences, strict=True):
                for part in choice.last(sequence):
                    yield self._chunk([part], tail)
            if self._asked.stream_options.include_usage:
                yield self._chunk([], {"usage": self._usage(result)})
            yield DONE
        except Refusal as refusal:
            yield event(openai_error(refusal))
        finally:
            talk.draw.close()

    def _chunk(self, choices: list[dict[str, Any]], others: dict[str, Any]) -> bytes:
        return self._chunks.event({"choices": choices, **others})

    def _usage(self, result: SampleResult) -> dict[str, Any]:
        return openai_usage([self._talk.chat.tokens], [result])

    def _choice(self, place: int, sequence: Drawn) -> dict[str, Any]:
        answer, tokens = self._talk.answer(), sequence.tokens.tolist()
        message = message_of([*answer.add(tokens), *answer.end()])
        logprobs = None
        if self._asked.logprobs:
            best = likeliest(sequence.topk)
            logprobs = {"content": entries(self._talk.text, tokens, sequence.logprobs, best)}
        values = {
            "index": place,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_reason(sequence, bool(message.get("tool_calls"))),
        }
        return {**values, "token_ids": tokens} if self._asked.return_token_ids else values


class _StreamedChoice:
    """One sequence, in deltas. The first says who speaks, as soon as the model does: the text of
    its first token may have to wait, for the rest of a character or of a tag."""

    def __init__(self, asked: ChatRequest, talk: Talk, place: int) -> None:
        self._asked = asked
        self._text = talk.text
        self._place = place
        self._answer = talk.answer()
        self._calls = 0
        self._first: dict[str, Any] = {"role": "assistant", "content": ""}

    def parts(self, news: News) -> list[dict[str, Any]]:
        """Choices of chunks, none where nothing can be told yet."""
        deltas = self._deltas(self._answer.add(news.tokens))
        extra: dict[str, Any] = {}
        if self._asked.logprobs:
            table = entries(self._text, news.tokens, news.logprobs, news.best)
            extra["logprobs"] = {"content": table}
        if self._asked.return_token_ids:
            extra["token_ids"] = news.tokens
        if not deltas and not extra and not self._first:
            return []
        first, *others = deltas or [{}]
        return [self._part(first, **extra), *(self._part(delta) for delta in others)]

    def last(self, sequence: Drawn) -> list[dict[str, Any]]:
        deltas = self._deltas(self._answer.end())
        reason = finish_reason(sequence, bool(self._calls))
        return [*(self._part(delta) for delta in deltas), self._part({}, finish_reason=reason)]

    def _part(self, delta: dict[str, Any], **others: Any) -> dict[str, Any]:
        delta, self._first = {**self._first, **delta}, {}
        shape = {"logprobs": None, "finish_reason": None}
        return {"index": self._place, "delta": delta, **shape, **others}

    def _deltas(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        return [self._delta(piece) for piece in pieces]

    def _delta(self, piece: Piece) -> dict[str, Any]:
        match piece:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case Call(name):
                self._calls += 1
                function = {"name": name, "arguments": ""}
                head = {"id": new_id("call_"), "type": "function"}
                return {"tool_calls": [{"index": self._calls - 1, **head, "function": function}]}
            case Arguments(text):
                function = {"arguments": text}
                return {"tool_calls": [{"index": self._calls - 1, "function": function}]}


def message_of(pieces: Sequence[Piece]) -> dict[str, Any]:
    """The assistant's message that pieces make."""
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    calls = tool_calls(pieces)
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if reasoning:
        message["reasoning_content"] = reasoning
    return {**message, "tool_calls": calls} if calls else message


def tool_calls(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, Call):
            function = {"name": piece.name, "arguments": ""}
            calls.append({"id": new_id("call_"), "type": "function", "function": function})
        elif isinstance(piece, Arguments) and calls:
            calls[-1]["function"]["arguments"] += piece.text
    return calls


def finish_reason(sequence: Drawn, called: bool) -> str:
    return "tool_calls" if called and sequence.stop_reason == "stop" else sequence.stop_reason


def entries(
    text: ModelText, tokens: Sequence[int], logprobs: Any, best: Sequence[Best]
) -> list[dict[str, Any]]:
    """A row for each drawn token, the one that stopped the sequence too."""
    values = [float(logprob) for logprob in logprobs]
    return [
        {
            **_entry(text, token, logprob),
            "top_logprobs": [_entry(text, *other) for other in (best[place] if best else ())],
        }
        for place, (token, logprob) in enumerate(zip(tokens, values, strict=True))
    ]


def _entry(text: ModelText, token: int, logprob: float) -> dict[str, Any]:
    spelt = text.pieces[token]
    return {"token": text.pieces.text(token), "logprob": logprob, "bytes": list(spelt)}
