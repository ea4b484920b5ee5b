"""The grammar of an answer: a JSON value of a schema, or calls of tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinkex.engine.messages import AnswerForm, Grammar
from tinkex.server.endpoints.errors import Unfit
from tinkex.text.formats import forms, thinking
from tinkex.text.formats.chosen import Format

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Must:
    """`call` are the tools of which one must be called, several if `parallel`; with a `schema` an
    answer that calls none must be JSON of it."""

    call: tuple[str, ...] = ()
    parallel: bool = True
    schema: Mapping[str, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.call) or self.schema is not None


def grammar(must: Must, name: Format, tools: Tools, inside_thinking: bool) -> Grammar | None:
    """None where an answer is free."""
    if not must:
        return None
    wanted = [tool["function"] for tool in tools]
    if must.call:
        wanted = [function for function in wanted if function["name"] in must.call]
    found = [_call(name, function) for function in wanted]
    if not must.call and must.schema is not None:
        begin, end = forms.json_form(name)
        found.insert(0, AnswerForm(begin, json.dumps(must.schema), end))
    separator = forms.between_calls(name) if must.call and must.parallel else None
    end_of_thought = thinking.CLOSE if inside_thinking else None
    return Grammar(tuple(found), separator, end_of_thought)


def named(tools: Tools, name: str) -> tuple[str, ...]:
    """A tool that must be called, if there is one of that name."""
    known = [tool["function"]["name"] for tool in tools]
    if name not in known:
        of = ", ".join(known) or "there are none"
        raise Unfit(f"tool_choice names {name!r}, which is none of tools: {of}", "tool_choice")
    return (name,)


def any_of(tools: Tools) -> tuple[str, ...]:
    if not tools:
        raise Unfit("tool_choice asks for a call, and tools are none", "tool_choice")
    return tuple(tool["function"]["name"] for tool in tools)


def _call(name: Format, function: Mapping[str, Any]) -> AnswerForm:
    begin, end = forms.call_form(name, function["name"])
    schema = {"type": "object", **(function.get("parameters") or {})}
    return AnswerForm(begin, json.dumps(schema), end)
