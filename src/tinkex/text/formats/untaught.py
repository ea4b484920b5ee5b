"""Tools for models whose chat template knows none: told of, called and answered in messages.

The words are those of the Hermes format, which most open models have seen: definitions in the
system message, calls between <tool_call> tags, results between <tool_response> tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = """# Tools

You may call one or more functions. Their signatures are within <tools></tools> tags:
<tools>
"""
_TAIL = """
</tools>

To call a function, answer with a JSON object with its name and arguments within tags:
<tool_call>
{"name": <function name>, "arguments": <arguments as a JSON object>}
</tool_call>"""

Message = Mapping[str, Any]


def with_tools(messages: Sequence[Message], tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The conversation as a template that knows roles and content only can render it."""
    spoken = [_spoken(message) for message in messages]
    if not tools:
        return spoken
    told = _HEAD + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + _TAIL
    if spoken and spoken[0]["role"] == "system":
        first = {**spoken[0], "content": f"{spoken[0]['content']}\n\n{told}"}
        return [first, *spoken[1:]]
    return [{"role": "system", "content": told}, *spoken]


def _spoken(message: Message) -> dict[str, Any]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [_call(call["function"]) for call in message.get("tool_calls") or ()]
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": "\n".join(part for part in (content, *calls) if part)}


def _call(function: Mapping[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps(dict(function), ensure_ascii=False)}\n</tool_call>"
