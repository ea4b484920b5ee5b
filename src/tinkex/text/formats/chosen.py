"""Which format a chat template teaches its model, and the parser for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from tinkex.text.formats import channels, json_calls
from tinkex.text.formats.channels import Channels
from tinkex.text.formats.json_calls import BareCalls, TaggedCalls
from tinkex.text.formats.pieces import Parser, Plain
from tinkex.text.formats.thinking import Thinking
from tinkex.text.formats.xml_calls import XmlCalls

Format = Literal["hermes", "qwen_xml", "llama3_json", "gpt_oss"]

Tools = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's parameters, by the tool's name."""


def format_of(template: str | None) -> Format:
    """By what a template itself writes. One that knows no tools is told of them in the Hermes way,
    so that is what its model answers in."""
    template = template or ""
    if channels.CHANNEL in template:
        return "gpt_oss"
    if "<function=" in template:
        return "qwen_xml"
    if json_calls.OPEN not in template and json_calls.PYTHON_TAG in template:
        return "llama3_json"
    return "hermes"


def markers(name: Format) -> tuple[str, ...]:
    """The special tokens that a parser has to see."""
    if name == "gpt_oss":
        return channels.MARKERS
    return (json_calls.OPEN, json_calls.CLOSE, json_calls.PYTHON_TAG, "<think>", "</think>")


def parser(name: Format, tools: Tools, *, thinking: bool, separate: bool = True) -> Parser:
    """For one answer to a prompt with these tools. `thinking` says that the prompt ends inside
    reasoning; without `separate` reasoning stays part of the content."""
    if name == "gpt_oss":
        return Channels()
    answer = _calls(name, tools)
    return Thinking(answer, thinking) if separate else answer


def _calls(name: Format, tools: Tools) -> Parser:
    if not tools:
        return Plain()
    if name == "qwen_xml":
        return XmlCalls(tools)
    return BareCalls(list(tools)) if name == "llama3_json" else TaggedCalls()
