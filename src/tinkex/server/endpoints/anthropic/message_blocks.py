"""Messages of the Anthropic-style conversation: blocks of text, thinking, tools and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tinkex.server.endpoints.declared import Declared
from tinkex.server.endpoints.values import Several, ToolName

CACHE = ("cache_control",)
"""Prompts are cached by themselves, as far as they are alike."""


class TextBlock(Declared):
    labels: ClassVar[Sequence[str]] = (*CACHE, "citations")

    type: Literal["text"]
    text: str


class ThinkingBlock(Declared):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(Declared):
    labels: ClassVar[Sequence[str]] = (*CACHE, "caller")

    type: Literal["tool_use"]
    id: str = Field(max_length=256)
    name: ToolName
    input: dict[str, Any]


class ToolResultBlock(Declared):
    labels: ClassVar[Sequence[str]] = CACHE

    type: Literal["tool_result"]
    tool_use_id: str = Field(max_length=256)
    content: str | Several[TextBlock] = ""
    is_error: bool = False


Block = Annotated[
    TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")
]


class Message(Declared):
    role: Literal["user", "assistant", "system"]
    content: str | Several[Block]

    @property
    def calls(self) -> bool:
        """Whether a tool is used in it."""
        blocks = () if isinstance(self.content, str) else self.content
        return any(isinstance(block, ToolUseBlock) for block in blocks)

    def told(self) -> list[dict[str, Any]]:
        """As templates have it: results of tools are messages of their own."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        found: list[dict[str, Any]] = []
        said: dict[str, Any] = {"role": self.role, "content": ""}
        for block in self.content:
            match block:
                case TextBlock():
                    said["content"] += block.text
                case ThinkingBlock():
                    said["reasoning_content"] = said.get("reasoning_content", "") + block.thinking
                case ToolUseBlock():
                    function = {"name": block.name, "arguments": block.input}
                    call = {"id": block.id, "type": "function", "function": function}
                    said.setdefault("tool_calls", []).append(call)
                case ToolResultBlock():
                    found.append(_result(block))
        empty = not said["content"] and len(said) == 2
        return found if found and empty else [*found, said]


def _result(block: ToolResultBlock) -> dict[str, Any]:
    text = joined(block.content)
    content = f"Error: {text}" if block.is_error else text
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def joined(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)
