"""What POST /messages and /messages/count_tokens take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from tinkex.engine.messages import SamplingParams
from tinkex.server.endpoints.anthropic.message_blocks import CACHE, Message, TextBlock, joined
from tinkex.server.endpoints.conversations import Conversation
from tinkex.server.endpoints.declared import Declared, Refused
from tinkex.server.endpoints.errors import Unfit
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

_EFFORT = "output_config.effort"


class CustomTool(Declared):
    refused: ClassVar[Mapping[str, Refused]] = {
        "defer_loading": Refused("tools are all loaded", unless=(False,)),
    }
    labels: ClassVar[Sequence[str]] = (*CACHE, "strict", "eager_input_streaming", "input_examples")

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
    budget_tokens: int | None = Field(None, ge=1, le=TOKEN_LIMIT)

    @property
    def budget(self) -> int | None:
        """The most tokens of reasoning."""
        if self.budget_tokens is not None and self.type != "enabled":
            raise Unfit(
                f"thinking.budget_tokens needs thinking.type enabled, not {self.type}",
                "thinking.budget_tokens",
            )
        return self.budget_tokens


class CountRequest(Declared):
    """A conversation; what else a client has of a request may come along."""

    refused: ClassVar[Mapping[str, Refused]] = {
        "mcp_servers": Refused("tools are called by clients", unless=([],)),
        "context_management": Refused("messages are read as they are sent"),
        "output_format": Refused("use output_config.format"),
        "container": Refused("nothing is run here"),
        "speed": Refused("there is one speed", unless=("standard",)),
    }
    labels: ClassVar[Sequence[str]] = (*CACHE, "user_profile_id", "workspace_id")

    model: ModelName
    messages: Several[Message] = Field(min_length=1, max_length=MESSAGES_LIMIT)
    system: str | Several[TextBlock] | None = None
    tools: Several[CustomTool] = Field(default_factory=list, max_length=TOOLS_LIMIT)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: ThinkingChoice | None = None
    output_config: OutputConfig = OutputConfig()

    def told(self) -> list[dict[str, Any]]:
        messages = [told for message in self._said() for told in message.told()]
        system = joined(self.system or "")
        return [{"role": "system", "content": system}, *messages] if system else messages

    def conversation(self, size: int) -> Conversation:
        return Conversation(
            model=self.model,
            messages=self.told(),
            size=size,
            tools=self._tools(),
            effort=self._effort,
            effort_field=_EFFORT,
            continued=self._continued,
        )

    def _said(self) -> list[Message]:
        """The messages, without a last one of the assistant's that says nothing."""
        *before, last = self.messages
        return before if before and last.role == "assistant" and not last.content else self.messages

    @property
    def _continued(self) -> bool:
        """A last message of the assistant's is the beginning of the answer."""
        last = self._said()[-1]
        if last.role == "assistant" and last.calls:
            raise Unfit(
                f"messages.{len(self.messages) - 1} ends with a tool_use: the next message has to "
                "bring its tool_result",
                f"messages.{len(self.messages) - 1}",
            )
        return last.role == "assistant"

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
    stop_sequences: StopTexts = Field(default_factory=list)
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
            effort_field=_EFFORT,
            budget=self._budget(),
            continued=self._continued,
        )

    def _budget(self) -> int | None:
        budget = None if self.thinking is None else self.thinking.budget
        if budget is not None and budget >= self.max_tokens:
            raise Unfit(
                f"max_tokens is {self.max_tokens} and must be greater than thinking.budget_tokens, "
                f"{budget}: reasoning is part of an answer",
                "thinking.budget_tokens",
            )
        return budget

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
