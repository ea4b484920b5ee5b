"""Reasoning of earlier answers, under the name by which a chat template reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_THINKING = re.compile(r"""\.thinking\b|["']thinking["']""")

Message = Mapping[str, Any]


def with_reasoning(messages: Sequence[Message], template: str) -> Sequence[Message]:
    """Clients send it as `reasoning_content`, which most templates read; that of gpt-oss reads
    `thinking`."""
    if "reasoning_content" in template or not _THINKING.search(template):
        return messages
    return [
        _thinking(message) if "reasoning_content" in message else message for message in messages
    ]


def _thinking(message: Message) -> Message:
    """Before a call gpt-oss's template takes reasoning or content, both for reasoning."""
    reasoning, content = message["reasoning_content"], message.get("content") or ""
    others = {name: value for name, value in message.items() if name != "reasoning_content"}
    if message.get("tool_calls") and content and reasoning:
        return {**others, "content": "", "thinking": f"{reasoning}\n\n{content}"}
    return {**others, "thinking": reasoning}
