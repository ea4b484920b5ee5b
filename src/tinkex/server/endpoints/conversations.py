"""A conversation with a model, from either API: rendered, sampled, and split into its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request

from tinkex.engine.messages import (
    Sample,
    SampleResult,
    SamplingControls,
    SamplingParams,
    Thinking,
)
from tinkex.server.endpoints.draws import HEARTBEAT_S, MOST_LOGPROBS, Draw, check_logprobs
from tinkex.server.endpoints.errors import Unfit
from tinkex.server.endpoints.grammars import Must, grammar
from tinkex.server.endpoints.sequence_text import SequenceText
from tinkex.server.endpoints.service import endpoints_of, target_of, work_on_text
from tinkex.server.endpoints.targets import Target
from tinkex.server.http.exchange import tenant_of, while_connected
from tinkex.text.formats import chosen, forms
from tinkex.text.formats.chosen import Format
from tinkex.text.formats.pieces import Call, Parser, Piece
from tinkex.text.model_text import Chat, ModelText

TOOL_CALLS_LIMIT = 1024
SHORTEST_BOUND = 1024
"""Answers are not shortened below this for the sake of logprobs: more logprobs are refused."""
_OURS = frozenset({"messages", "tools", "add_generation_prompt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A request for an answer."""

    model: str  # as the request names it
    messages: Sequence[Mapping[str, Any]]  # as chat templates have them
    size: int  # about how many characters messages and tools are
    tools: Sequence[Mapping[str, Any]] = ()  # as chat templates have them
    variables: Mapping[str, Any] = field(default_factory=dict)  # what the template is told besides
    params: SamplingParams = field(default_factory=SamplingParams)  # of sampling
    # of sampling, beside the protocol's
    controls: SamplingControls = field(default_factory=SamplingControls)
    n: int = 1  # answers
    top_logprobs: int = 0  # likeliest tokens reported at each place
    stream: bool = False  # whether the answer comes in pieces
    stops: Sequence[str] = ()  # texts that end an answer
    keep_stop: bool = False  # whether such a text is part of the answer
    show_special: bool = False  # whether special tokens are part of it
    separate: bool = True  # whether reasoning is separate from the content
    format: Format | None = None  # of tool calls; None: as the template teaches
    effort: str | None = None  # of reasoning, for templates that know it
    budget: int | None = None  # most tokens of reasoning
    continued: bool = False  # whether the answer continues the last message
    must: Must = field(default_factory=Must)  # what an answer is held to
    schema_field: str = "response_format"  # what the request calls the schema in that
    effort_field: str = "reasoning_effort"  # and the effort


class Answer:
    """One sequence of an answer, in pieces; with `single` it ends before a second tool call."""

    def __init__(self, text: SequenceText, parser: Parser, single: bool) -> None:
        self._text = text
        self._parser = parser
        self._calls_left = 1 if single else TOOL_CALLS_LIMIT

    @property
    def stopped_by(self) -> str | None:
        return self._text.stopped_by

    def add(self, tokens: Sequence[int]) -> list[Piece]:
        return list(self._allowed(self._parser.add(self._text.add(tokens))))

    def end(self) -> list[Piece]:
        pieces = [*self._parser.add(self._text.end()), *self._parser.end()]
        return list(self._allowed(pieces))

    def _allowed(self, pieces: Sequence[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            self._calls_left -= isinstance(piece, Call)
            if self._calls_left >= 0:
                yield piece


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation under way. Its holder must `close` it."""

    asked: Conversation
    text: ModelText
    chat: Chat
    target: Target
    draw: Draw

    def answer(self) -> Answer:
        """For one of the sequences."""
        asked, text = self.asked, self.text
        name = asked.format or text.format
        name = forms.forced(name) if asked.must.call else name
        begun = self.chat.tokens if asked.continued else ()
        voice = text.detokenizer(asked.show_special, chosen.markers(name), after=begun)
        schemas = {
            tool["function"]["name"]: tool["function"].get("parameters") or {}
            for tool in asked.tools
        }
        thinking, separate = self.chat.thinking, asked.separate
        parser = chosen.parser(name, schemas, thinking=thinking, separate=separate)
        said = SequenceText(voice, asked.stops, asked.keep_stop)
        return Answer(said, parser, single=not asked.must.parallel)

    async def result(self, request: Request) -> SampleResult:
        """The whole answer, unless the client goes away."""
        try:
            return (await while_connected(request, self.draw.results()))[0]
        finally:
            self.draw.close()


async def rendered(request: Request, asked: Conversation) -> tuple[Target, ModelText, Chat]:
    """The tokens of a conversation for the model it names."""
    _check_names(asked.tools)
    texts = endpoints_of(request).texts
    target = await target_of(request, asked.model)
    text = await texts.of(target.pool)
    chat = await work_on_text(request, asked.size, partial(_chat, asked, text), "messages")
    return target, text, chat


def _chat(asked: Conversation, text: ModelText) -> Chat:
    variables = _variables(asked, text)
    return text.chat(asked.messages, asked.tools, asked.continued, **variables)


def _check_names(tools: Sequence[Mapping[str, Any]]) -> None:
    counted = Counter(tool["function"]["name"] for tool in tools)
    for name, count in counted.items():
        if count > 1:
            raise Unfit(f"tools: {name!r} is there twice: give each a name of its own", "tools")


def _variables(asked: Conversation, text: ModelText) -> dict[str, Any]:
    """What the template is told; refuses what it would take no notice of."""
    for name in asked.variables:
        if name not in text.variables or name in _OURS:
            raise Unfit(
                f"chat_template_kwargs.{name[:128]} is not read by the chat template of "
                f"{text.name}; it reads {', '.join(sorted(text.variables - _OURS)) or 'none'}",
                f"chat_template_kwargs.{name[:128]}",
            )
    return {**_effort(asked, text), **asked.variables}


def _effort(asked: Conversation, text: ModelText) -> dict[str, Any]:
    effort, field = asked.effort, asked.effort_field
    if effort is None:
        return {}
    known: dict[str, Any] = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    found = {name: value for name, value in known.items() if name in text.variables}
    if not found and effort != "none":
        raise Unfit(f"{field} is not read by the chat template of {text.name}", field)
    return found


def bounded(asked: Conversation, room: int) -> SamplingParams:
    """With likeliest tokens, an answer that has no limit of its own, and `room` for more than can
    be told, gets one: a client that names no limit seldom means the whole context."""
    width = asked.top_logprobs * asked.n
    if asked.params.max_tokens is not None:
        check_logprobs("top_logprobs", width * asked.params.max_tokens)
        return asked.params
    if width * room <= MOST_LOGPROBS:
        return asked.params
    check_logprobs("top_logprobs", width * SHORTEST_BOUND)
    return replace(asked.params, max_tokens=MOST_LOGPROBS // width)


def _thinking(asked: Conversation, name: Format, inside: bool) -> Thinking | None:
    """A budget is kept whatever the template says about reasoning, because an adapter may have
    learnt to reason."""
    if asked.budget is None:
        return None
    return Thinking(asked.budget, *forms.reasoning(name), inside=inside)


def _room(target: Target, prompt: int) -> int:
    """How long an answer may be, as far as is known."""
    facts = target.pool.facts
    return (target.context or (0 if facts is None else facts.max_context)) - prompt


async def begin(request: Request, asked: Conversation) -> Talk:
    """Let the model answer. For a stream, errors are known before its first event."""
    if asked.continued and asked.must:
        held = "tool_choice" if asked.must.call else asked.schema_field
        raise Unfit(
            f"{held} says what the whole answer is, and the last message has begun it already: "
            "leave out one of them",
            "messages",
        )
    target, text, chat = await rendered(request, asked)
    name = asked.format or text.format
    command = Sample(
        op="",
        weights="",
        prompt=np.array(chat.tokens, np.int32),
        params=bounded(asked, _room(target, len(chat.tokens))),
        num_samples=asked.n,
        topk_sample_logprobs=asked.top_logprobs,
        controls=asked.controls,
        grammar=grammar(asked.must, name, asked.tools, chat.thinking),
        thinking=_thinking(asked, name, chat.thinking),
    )
    draws = endpoints_of(request).draws
    held = "tools" if asked.must.call else asked.schema_field
    tenant, stream = tenant_of(request), asked.stream
    draw = draws.begin(tenant, target, [command], stream=stream, grammar=held)
    if asked.stream:
        try:
            await draw.begun(HEARTBEAT_S)
        except BaseException:
            draw.close()
            raise
    return Talk(asked, text, chat, target, draw)
