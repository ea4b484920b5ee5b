"""What POST /responses takes. Nothing is kept between requests: a conversation is sent whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from tinkex.engine.messages import SamplingParams
from tinkex.server.endpoints.conversations import Conversation
from tinkex.server.endpoints.declared import Declared, Refused
from tinkex.server.endpoints.errors import Unfit
from tinkex.server.endpoints.grammars import Must, any_of, named
from tinkex.server.endpoints.openai.chat_request import Effort
from tinkex.server.endpoints.openai.sampling_fields import LABELS, TOP_LIMIT
from tinkex.server.endpoints.values import (
    MESSAGES_LIMIT,
    TEXT_ONLY,
    TOKEN_LIMIT,
    TOOLS_LIMIT,
    Chance,
    ModelName,
    Several,
    ToolName,
    at_most,
)

_STATELESS = "nothing is kept here: send the whole conversation as input"


Included = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]


class InputText(Declared):
    labels: ClassVar[Sequence[str]] = ("annotations", "logprobs")

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class InputMessage(Declared):
    labels: ClassVar[Sequence[str]] = ("id", "status", "phase")

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Several[InputText]


class InputCall(Declared):
    labels: ClassVar[Sequence[str]] = ("id", "status", "namespace", "caller")

    type: Literal["function_call"]
    call_id: str = Field(max_length=256)
    name: ToolName
    arguments: str


class InputResult(Declared):
    labels: ClassVar[Sequence[str]] = ("id", "status", "caller")

    type: Literal["function_call_output"]
    call_id: str = Field(max_length=256)
    output: str | Several[InputText]


class InputReasoning(Declared):
    labels: ClassVar[Sequence[str]] = ("id", "status")
    refused: ClassVar[Mapping[str, Refused]] = {
        "encrypted_content": Refused("reasoning is not encrypted here", unless=("",))
    }

    type: Literal["reasoning"]
    summary: Several[InputText] = Field(default_factory=list)
    content: Several[InputText] = Field(default_factory=list)


def _kind(item: Any) -> Any:
    """Of an item; one that names none is a message. Anything may stand there."""
    given = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)
    return given if isinstance(given, str) else "?"


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputResult, Tag("function_call_output")]
    | Annotated[InputReasoning, Tag("reasoning")],
    Discriminator(_kind),
]


class ResponseTool(Declared):
    labels: ClassVar[Sequence[str]] = ("strict", "output_schema")
    refused: ClassVar[Mapping[str, Refused]] = {
        "defer_loading": Refused("tools are all loaded", unless=(False,)),
        "allowed_callers": Refused("tools are called by models only"),
    }

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def told(self) -> dict[str, Any]:
        described = {} if self.description is None else {"description": self.description}
        parameters = self.parameters or {"type": "object", "properties": {}}
        function = {"name": self.name, **described, "parameters": parameters}
        return {"type": "function", "function": function}


class NamedTool(Declared):
    type: Literal["function"]
    name: ToolName


class TextFormat(Declared):
    labels: ClassVar[Sequence[str]] = ("name", "description", "strict")

    type: Literal["text", "json_object", "json_schema"] = "text"
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    @property
    def wanted(self) -> dict[str, Any] | None:
        if self.type == "json_schema" and self.schema_ is None:
            raise Unfit("text.format.schema is required", "text.format.schema")
        return None if self.type == "text" else self.schema_ or {"type": "object"}


class TextConfig(Declared):
    refused: ClassVar[Mapping[str, Refused]] = {
        "verbosity": Refused("say it in a message", unless=("medium",))
    }

    format: TextFormat = Field(default_factory=lambda: TextFormat.model_validate({}))


class Reasoning(Declared):
    refused: ClassVar[Mapping[str, Refused]] = {
        "generate_summary": Refused("reasoning is shown as it is", unless=("auto",)),
        "summary": Refused("reasoning is shown as it is", unless=("auto", "none")),
        "context": Refused("reasoning is shown as it is", unless=("auto",)),
        "mode": Refused("leave it out"),
    }

    effort: Effort | None = None


class ResponseStreamOptions(Declared):
    include_obfuscation: bool = False


class ResponsesRequest(Declared):
    refused: ClassVar[Mapping[str, Refused]] = {
        "access_programs": Refused("there are none here"),
        "image": Refused(TEXT_ONLY),
        "background": Refused("an answer comes while you wait", unless=(False,)),
        "context_management": Refused(_STATELESS),
        "conversation": Refused(_STATELESS),
        "max_tool_calls": Refused("only functions of yours are called"),
        "moderation": Refused("nothing is moderated here"),
        "previous_response_id": Refused(_STATELESS),
        "prompt": Refused("prompts are not kept here"),
        "prompt_cache_options": Refused("prompts are cached by themselves"),
        "service_tier": Refused("there is one tier", unless=("auto", "default")),
        "store": Refused(_STATELESS, unless=(False,)),
        "truncation": Refused("a conversation is read whole", unless=("disabled",)),
    }
    labels: ClassVar[Sequence[str]] = tuple(name for name in LABELS if name != "metadata")

    model: ModelName
    input: str | Several[Item] = Field(min_length=1, max_length=16 * 2**20)
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=TOKEN_LIMIT)
    temperature: float = Field(1.0, ge=0, le=1e6)
    top_p: Chance = 1.0
    top_k: int = Field(-1, ge=-1, le=TOKEN_LIMIT)
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    top_logprobs: int = Field(0, ge=0, le=TOP_LIMIT)
    include: Several[Included] = Field(default_factory=list, max_length=8)
    tools: Several[ResponseTool] = Field(default_factory=list, max_length=TOOLS_LIMIT)
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    text: TextConfig = TextConfig()
    reasoning: Reasoning = Reasoning()
    metadata: Annotated[dict[str, str], at_most(16)] = Field(default_factory=dict)
    stream: bool = False
    stream_options: ResponseStreamOptions = ResponseStreamOptions()

    @property
    def scored(self) -> bool:
        return bool(self.top_logprobs) or "message.output_text.logprobs" in self.include

    def conversation(self, size: int) -> Conversation:
        tools = [] if self.tool_choice == "none" else [tool.told() for tool in self.tools]
        return Conversation(
            model=self.model,
            messages=self._messages(),
            size=size,
            tools=tools,
            params=SamplingParams(
                max_tokens=self.max_output_tokens,
                seed=self.seed,
                temperature=self.temperature,
                top_k=self.top_k if self.top_k else -1,
                top_p=self.top_p,
            ),
            top_logprobs=self.top_logprobs,
            stream=self.stream,
            effort=self.reasoning.effort,
            effort_field="reasoning.effort",
            must=self._must(tools),
            schema_field="text.format",
        )

    def _must(self, tools: list[dict[str, Any]]) -> Must:
        choice, schema = self.tool_choice, self.text.format.wanted
        if isinstance(choice, NamedTool):
            return Must(named(tools, choice.name), False, schema)
        if choice == "required":
            return Must(any_of(tools), self.parallel_tool_calls, schema)
        return Must(parallel=self.parallel_tool_calls, schema=schema)

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        if len(self.input) > MESSAGES_LIMIT:
            raise Unfit(f"input has more than {MESSAGES_LIMIT} items", "input")
        for item in self.input:
            _tell(messages, item)
        return messages


def _tell(messages: list[dict[str, Any]], item: Item) -> None:
    """Items of one turn of the assistant's become one message, as templates have it."""
    match item:
        case InputMessage():
            role = "system" if item.role == "developer" else item.role
            if role == "assistant":
                _turn(messages)["content"] += _joined(item.content)
            else:
                messages.append({"role": role, "content": _joined(item.content)})
        case InputReasoning():
            messages.append({"role": "assistant", "content": ""})
            messages[-1]["reasoning_content"] = _joined(item.content or item.summary)
        case InputCall():
            function = {"name": item.name, "arguments": _object(item.arguments)}
            call = {"id": item.call_id, "type": "function", "function": function}
            _turn(messages).setdefault("tool_calls", []).append(call)
        case InputResult():
            result = {"role": "tool", "tool_call_id": item.call_id}
            messages.append({**result, "content": _joined(item.output)})


def _turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _joined(content: str | Sequence[InputText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _object(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
