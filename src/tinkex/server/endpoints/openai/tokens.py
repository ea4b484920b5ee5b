"""POST /tokenize and /detokenize, GET /tokenizer_info: a model's tokenizer without its files."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from tinkex.server.endpoints.conversations import Conversation, rendered
from tinkex.server.endpoints.declared import Declared
from tinkex.server.endpoints.errors import Unfit
from tinkex.server.endpoints.openai.chat_request import ChatMessage, Tool
from tinkex.server.endpoints.service import (
    answered,
    endpoints_of,
    read,
    target_of,
    work_on_text,
)
from tinkex.server.endpoints.targets import Target
from tinkex.server.endpoints.values import MESSAGES_LIMIT, TOOLS_LIMIT, ModelName, Several, Token
from tinkex.server.http.exchange import answer, core_of, tenant_of
from tinkex.text.model_text import ModelText

_TOKENS = 2_000_000


class TokenizeRequest(Declared):
    """A text, or messages as the model's chat template has them."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Several[ChatMessage] | None = Field(None, min_length=1, max_length=MESSAGES_LIMIT)
    tools: Several[Tool] = Field(default_factory=list, max_length=TOOLS_LIMIT)
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Declared):
    model: ModelName | None = None
    tokens: Annotated[Several[Token], Field(max_length=_TOKENS)]


async def tokenize(request: Request) -> Response:
    """The tokens of a text or a conversation."""
    asked, size = await read(request, TokenizeRequest)
    if (asked.prompt is None) == (asked.messages is None):
        raise Unfit("prompt or messages: give one of them", "prompt")
    name = asked.model or _only_model(request)
    if asked.messages is not None:
        messages, tools = [each.told() for each in asked.messages], [t.told() for t in asked.tools]
        told = Conversation(model=name, messages=messages, tools=tools, size=size)
        target, text, chat = await rendered(request, told)
        tokens = chat.tokens
    else:
        target, prompt = await target_of(request, name), asked.prompt or ""
        text = await endpoints_of(request).texts.of(target.pool)
        special = asked.add_special_tokens
        encode = partial(text.encode, prompt, special)
        tokens = await work_on_text(request, size, encode, "prompt")
    facts = target.pool.facts
    longest = None if facts is None else facts.max_context
    values = {"count": len(tokens), "max_model_len": longest, "tokens": tokens}
    spelt = tokens if asked.return_token_strs else None
    return await answered(request, size, lambda: values | _strings(text, spelt), target)


def _strings(text: ModelText, tokens: list[int] | None) -> dict[str, list[str] | None]:
    spelt = None if tokens is None else [text.pieces.text(token) for token in tokens]
    return {"token_strs": spelt}


async def detokenize(request: Request) -> Response:
    """The text of tokens."""
    asked, size = await read(request, DetokenizeRequest)
    target, text = await _text(request, asked.model)
    _check_known(asked.tokens, target, text)
    return await answered(request, size, lambda: {"prompt": text.decode(asked.tokens)}, target)


def _check_known(tokens: list[int], target: Target, text: ModelText) -> None:
    """What a model may draw has a text, if none that is seen; there is no more of it."""
    facts = target.pool.facts
    size = max(len(text.tokenizer), 0 if facts is None else facts.vocab_size)
    if tokens and (most := max(tokens)) >= size:
        place = f"tokens[{tokens.index(most)}]"
        raise Unfit(f"{place} is {most}, outside the vocabulary (0 to {size - 1})", place)


async def tokenizer_info(request: Request) -> Response:
    """What a client must know to write prompts of its own."""
    tokenizer = (await _text(request, request.query_params.get("model")))[1].tokenizer
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    found = {name: getattr(tokenizer, name) for name in names}
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "vocab_size": len(tokenizer)}
    return answer({**values, **found, "chat_template": tokenizer.chat_template})


async def _text(request: Request, name: str | None) -> tuple[Target, ModelText]:
    tenant_of(request)
    target = await target_of(request, name or _only_model(request))
    return target, await endpoints_of(request).texts.of(target.pool)


def _only_model(request: Request) -> str:
    """Some clients know one model per server and do not name it."""
    names = [pool.spec.name for pool in core_of(request).engines.pools]
    if len(names) != 1:
        raise Unfit(f"model is required here; served are: {', '.join(names)}", "model")
    return names[0]
