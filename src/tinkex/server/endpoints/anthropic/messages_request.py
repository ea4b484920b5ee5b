"""What POST /messages and /messages/count_tokens take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tinkex.engine.messages import SamplingParams
from tinkex.server.endpoints.conversations import Conversation
from tinkex.server.endpoints.declared import Declared, Refused
from tinkex.server.endpoints.grammars import Must, any_of, named
from tinkex.server.endpoints.values import (
    MESSAGES_LIMIT,
    TOKEN_LIMIT,
    TOOLS_LIMIT,
    Chance,
    ModelName,
    Several,
    StopTexts,
    ToolName,
)

_CACHE = ("cache_control",)
"""Prompts are cached by themselves, as far as they are alike."""


class TextBlock(Declared):
    labels: ClassVar[Sequence[str]] = (*_CACHE, "citations")

    type: Literal["text"]
    text: str


class ThinkingBlock(Declared):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(Declared):
    labels: ClassVar[Sequence[str]] = (*_CACHE, "caller")

    type: Literal["tool_use"]
    id: str = Field(max_length=256)
    name: ToolName
    input: dict[str, Any]


class ToolResultBlock(Declared):
    labels: ClassVar[Sequence[str]] = _CACHE

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


class CustomTool(Declared):
    refused: ClassVar[Mapping[str, Refused]] = {
        "defer_loading": Refused("tools are all loaded", unless=(False,)),
    }
    labels: ClassVar[Sequence[str]] = (*_CACHE, "strict", "eager_input_streaming", "input_examples")

    type: Literal["custom"] = "custom"
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]

    def told(self) -> dict[str, Any]:
        described = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **described, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ToolChoice(Declared):
    type: Literal["auto", "any", "none", "tool"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool = False

    def must(self, tools: list[dict[str, Any]], schema: dict[str, Any] | None) -> Must:
        parallel = not self.disable_parallel_tool_use
        if self.type == "tool":
            return Must(named(tools, self.name or ""), False, schema)
        if self.type == "any":
            return Must(any_of(tools), parallel, schema)
        return Must(parallel=parallel, schema=schema)


class OutputFormat(Declared):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Declared):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "max"] | None = None


class ThinkingChoice(Declared):
    refused: ClassVar[Mapping[str, Refused]] = {
        "display": Refused("reasoning is shown as it is", unless=("summarized",))
    }

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)


class CountRequest(Declared):
    """A conversation; what else a client has of a request may come along."""

    refused: ClassVar[Mapping[str, Refused]] = {
        "mcp_servers": Refused("tools are called by clients", unless=([],)),
        "context_management": Refused("messages are read as they are sent"),
        "output_format": Refused("use output_config.format"),
        "container": Refused("nothing is run here"),
        "speed": Refused("there is one speed", unless=("standard",)),
    }
    labels: ClassVar[Sequence[str]] = (*_CACHE, "user_profile_id", "workspace_id")

    model: ModelName
    messages: Several[Message] = Field(min_length=1, max_length=MESSAGES_LIMIT)
    system: str | Several[TextBlock] | None = None
    tools: Several[CustomTool] = Field([], max_length=TOOLS_LIMIT)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: ThinkingChoice | None = None
    output_config: OutputConfig = OutputConfig()

    def told(self) -> list[dict[str, Any]]:
        messages = [told for message in self.messages for told in message.told()]
        system = _joined(self.system or "")
        return [{"role": "system", "content": system}, *messages] if system else messages

    def conversation(self, size: int) -> Conversation:
        return Conversation(
            model=self.model,
            messages=self.told(),
            size=size,
            tools=self._tools(),
            effort=self._effort,
        )

    def _tools(self) -> list[dict[str, Any]]:
        return [] if self.tool_choice.type == "none" else [tool.told() for tool in self.tools]

    @property
    def _effort(self) -> str | None:
        """Models that can think do so unless told not to."""
        off = self.thinking is not None and self.thinking.type == "disabled"
        return "none" if off else self.output_config.effort


class MessagesRequest(CountRequest):
    refused: ClassVar[Mapping[str, Refused]] = {
        **CountRequest.refused,
        "service_tier": Refused("there is one tier", unless=("auto", "standard_only")),
        "inference_geo": Refused("there is one place"),
        "diagnostics": Refused("see the server's own log"),
    }
    labels: ClassVar[Sequence[str]] = (*CountRequest.labels, "metadata")

    max_tokens: int = Field(ge=1, le=TOKEN_LIMIT)
    temperature: float = Field(1.0, ge=0, le=1e6)
    top_p: Chance = 1.0
    top_k: int = Field(-1, ge=-1, le=TOKEN_LIMIT)
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    stop_sequences: StopTexts = Field([])
    stream: bool = False

    def conversation(self, size: int) -> Conversation:
        tools, wanted = self._tools(), self.output_config.format
        return Conversation(
            model=self.model,
            messages=self.told(),
            size=size,
            tools=tools,
            must=self.tool_choice.must(tools, None if wanted is None else wanted.schema_),
            schema_field="output_config.format",
            params=self._params(),
            stream=self.stream,
            stops=self.stop_sequences,
            effort=self._effort,
        )

    def _params(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            seed=self.seed,
            stop=tuple(self.stop_sequences) or None,
            temperature=self.temperature,
            top_k=self.top_k if self.top_k else -1,
            top_p=self.top_p,
            stop_at_eos=bool(self.stop_sequences),
        )


def _result(block: ToolResultBlock) -> dict[str, Any]:
    text = _joined(block.content)
    content = f"Error: {text}" if block.is_error else text
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _joined(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)
