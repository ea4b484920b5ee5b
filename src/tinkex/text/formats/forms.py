"""How an answer that must be a tool call, or JSON, begins and ends in each format."""

from __future__ import annotations

import json

from tinkex.text.formats import thinking
from tinkex.text.formats.chosen import Format

Form = tuple[str, str]
"""What stands before and behind the JSON."""


def call_form(name: Format, tool: str) -> Form:
    """One call of a tool, its arguments being the JSON. The XML style has no JSON inside, so its
    models are made to call in the way most others do."""
    quoted = json.dumps(tool, ensure_ascii=False)
    if name == "gpt_oss":
        head = f"<|channel|>commentary to=functions.{tool} <|constrain|>json<|message|>"
        return head, "<|call|>"
    if name == "llama3_json":
        return f'{{"name": {quoted}, "parameters": ', "}"
    return f'<tool_call>\n{{"name": {quoted}, "arguments": ', "}\n</tool_call>"


def between_calls(name: Format) -> str | None:
    """What stands between two calls; None where an answer is one call."""
    return "\n" if name in ("hermes", "qwen_xml") else None


def json_form(name: Format) -> Form:
    """An answer that is JSON."""
    return ("<|channel|>final<|message|>", "<|return|>") if name == "gpt_oss" else ("", "")


def reasoning(name: Format) -> tuple[str, str, str]:
    """How reasoning begins and ends, and what ends it so that an answer follows."""
    if name == "gpt_oss":
        final = "<|end|><|start|>assistant<|channel|>final<|message|>"
        return "<|channel|>analysis<|message|>", "<|end|>", final
    return thinking.OPEN, thinking.CLOSE, f"\n{thinking.CLOSE}\n\n"


def forced(name: Format) -> Format:
    """The format of calls that were forced."""
    return "hermes" if name == "qwen_xml" else name
