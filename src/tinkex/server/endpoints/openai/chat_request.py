"""What POST /chat/completions takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tinkex.server.endpoints.conversations import Conversation
from tinkex.server.endpoints.declared import Declared, Refused
from tinkex.server.endpoints.errors import Unfit
from tinkex.server.endpoints.grammars import Must, any_of, named
from tinkex.server.endpoints.openai.sampling_fields import SamplingFields
from tinkex.server.endpoints.values import (
    MESSAGES_LIMIT,
    TEXT_ONLY,
    TOKEN_LIMIT,
    TOOLS_LIMIT,
    Several,
    ToolName,
)
from tinkex.text.formats.chosen import Format

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class TextPart(Declared):
    type: Literal["text"]
    text: str


class FunctionCall(Declared):
    name: ToolName
    arguments: str = "{}"


class ToolCall(Declared):
    labels: ClassVar[Sequence[str]] = ("index",)

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall

    def told(self) -> dict[str, Any]:
        """As templates have it: with arguments that are an object, where they are one."""
        function = {"name": self.function.name, "arguments": _object(self.function.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class ChatMessage(Declared):
    refused: ClassVar[Mapping[str, Refused]] = {
        "audio": Refused(TEXT_ONLY),
        "function_call": Refused("use tool_calls"),
    }
    labels: ClassVar[Sequence[str]] = ("refusal", "annotations", "provider_specific_fields")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Several[TextPart] | None = None
    name: str | None = Field(None, max_length=256)
    tool_calls: Several[ToolCall] | None = Field(None, max_length=TOOLS_LIMIT)
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and self.role not in ("assistant", "tool"):
            raise ValueError("needs content: a text, or a list of parts of type text")
        return self

    def told(self) -> dict[str, Any]:
        """As templates have it."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        calls = [call.told() for call in self.tool_calls or ()]
        others = {
            "name": self.name,
            "tool_calls": calls or None,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content,
        }
        given = {name: value for name, value in others.items() if value is not None}
        return {"role": role, "content": text, **given}


class Function(Declared):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Declared):
    type: Literal["function"]
    function: Function

    def told(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        function["parameters"] = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


class NamedFunction(Declared):
    name: ToolName


class NamedTool(Declared):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Declared):
    labels: ClassVar[Sequence[str]] = ("description",)

    name: str = Field("", max_length=256)
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Declared):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def schema_wanted(self) -> dict[str, Any] | None:
        if self.type != "json_schema":
            return {"type": "object"} if self.type == "json_object" else None
        if self.json_schema is None:
            raise Unfit("response_format.json_schema is required", "response_format.json_schema")
        return self.json_schema.schema_


class ChatRequest(SamplingFields):
    refused: ClassVar[Mapping[str, Refused]] = {
        **SamplingFields.refused,
        "audio": Refused(TEXT_ONLY),
        "modalities": Refused(TEXT_ONLY, unless=(["text"],)),
        "functions": Refused("use tools"),
        "function_call": Refused("use tool_choice"),
        "prompt_cache_options": Refused("prompts are cached by themselves"),
        "prediction": Refused("guesses are made by the engine itself"),
        "verbosity": Refused("say it in a message", unless=("medium",)),
        "web_search_options": Refused("nothing is searched for here"),
        "moderation": Refused("nothing is moderated here"),
    }

    messages: Several[ChatMessage] = Field(min_length=1, max_length=MESSAGES_LIMIT)
    max_tokens: int | None = Field(None, ge=1, le=TOKEN_LIMIT)
    max_completion_tokens: int | None = Field(None, ge=1, le=TOKEN_LIMIT)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=1000)
    tools: Several[Tool] = Field(default_factory=list, max_length=TOOLS_LIMIT)
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    response_format: ResponseFormat = ResponseFormat(type="text")
    reasoning_effort: Effort | None = None
    separate_reasoning: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, max_length=64)
    tool_format: Format | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None

    def conversation(self, size: int) -> Conversation:
        if self.top_logprobs and not self.logprobs:
            raise Unfit("top_logprobs needs logprobs: true", "top_logprobs")
        self._check_turn()
        tools = [] if self.tool_choice == "none" else [tool.told() for tool in self.tools]
        return Conversation(
            model=self.model,
            messages=[message.told() for message in self.messages],
            size=size,
            tools=tools,
            variables=self.chat_template_kwargs,
            params=self.params(self._most_tokens()),
            controls=self.controls(),
            n=self.n,
            top_logprobs=self.top_logprobs,
            stream=self.stream,
            stops=self.stop_texts,
            keep_stop=self.include_stop_str_in_output,
            show_special=not self.skip_special_tokens,
            separate=self.separate_reasoning,
            format=self.tool_format,
            effort=self.reasoning_effort,
            continued=self.continue_final_message,
            must=self._must(tools),
        )

    def _check_turn(self) -> None:
        """An answer is a new turn, or goes on with the assistant's last."""
        goes_on, last = self.continue_final_message, self.messages[-1]
        if goes_on and (last.role != "assistant" or last.tool_calls):
            raise Unfit(
                "continue_final_message needs a last message of the assistant's without tool_calls",
                "continue_final_message",
            )
        if self.add_generation_prompt is goes_on:
            raise Unfit(
                f"add_generation_prompt must be {json.dumps(not goes_on)} with "
                f"continue_final_message {json.dumps(goes_on)}: an answer is a new turn or goes on "
                "with the last",
                "add_generation_prompt",
            )

    def _most_tokens(self) -> int | None:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise Unfit(
                f"max_tokens is {old} and max_completion_tokens {new}: they are two names of one "
                "limit, give one",
                "max_tokens",
            )
        return old if new is None else new

    def _must(self, tools: list[dict[str, Any]]) -> Must:
        choice, schema = self.tool_choice, self.response_format.schema_wanted
        if isinstance(choice, NamedTool):
            return Must(named(tools, choice.function.name), False, schema)
        if choice == "required":
            return Must(any_of(tools), self.parallel_tool_calls, schema)
        return Must(parallel=self.parallel_tool_calls, schema=schema)


def _object(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
