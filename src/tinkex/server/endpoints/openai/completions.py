"""POST /completions: text or token ids in, text, ids and logprobs out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, PlainValidator, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from tinkex.engine.messages import Sample
from tinkex.server.endpoints.declared import Refused
from tinkex.server.endpoints.draws import HEARTBEAT_S, cells, check_logprobs
from tinkex.server.endpoints.errors import Unfit
from tinkex.server.endpoints.event_stream import EventStream
from tinkex.server.endpoints.openai.completion_answers import Completion
from tinkex.server.endpoints.openai.sampling_fields import TOP_LIMIT, SamplingFields
from tinkex.server.endpoints.service import (
    answered,
    endpoints_of,
    read,
    target_of,
    work_on_text,
)
from tinkex.server.endpoints.values import TOKEN_LIMIT
from tinkex.server.http.exchange import tenant_of, while_connected
from tinkex.text.model_text import ModelText

_PROMPTS = 2048
_CHOICES = 4096
_FORMS = "must be a text, a list of texts, a list of token ids, or a list of such lists"
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": _PROMPTS},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": _PROMPTS},
    ]
}


def _prompts(value: Any) -> list[str] | list[list[int]]:
    """Any of the four forms as a list of prompts; by hand, for there may be a million tokens."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError(_FORMS)
    if _are_ids(value):
        return [value]
    if len(value) > _PROMPTS:
        raise ValueError(f"has {len(value)} entries; the limit is {_PROMPTS}")
    if all(isinstance(each, str) for each in value) or all(map(_are_ids, value)):
        return value
    raise ValueError(_FORMS)


def _are_ids(value: Any) -> bool:
    if not isinstance(value, list) or not value or set(map(type, value)) != {int}:
        return False
    return bool(min(value) >= 0 and max(value) <= TOKEN_LIMIT)


class CompletionRequest(SamplingFields):
    refused: ClassVar[Mapping[str, Refused]] = {
        **SamplingFields.refused,
        "suffix": Refused("these models continue a text, they fill no gap", unless=("",)),
        "best_of": Refused("ask for n samples and choose by their logprobs", unless=(1,)),
    }

    prompt: Annotated[list[Any], PlainValidator(_prompts), WithJsonSchema(_SCHEMA)]
    max_tokens: int = Field(16, ge=0, le=TOKEN_LIMIT)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=TOP_LIMIT)
    add_special_tokens: bool = True

    @property
    def size(self) -> int:
        """Characters of text that have to be made tokens."""
        return sum(len(each) for each in self.prompt if isinstance(each, str))

    def prompts(self, text: ModelText) -> list[list[int]]:
        """The tokens of each prompt."""
        return [self._tokens(text, each) if isinstance(each, str) else each for each in self.prompt]

    def _tokens(self, text: ModelText, prompt: str) -> list[int]:
        tokens = text.encode(prompt, self.add_special_tokens)
        if not tokens:
            raise Unfit("prompt is empty: give at least one token", "prompt")
        return tokens

    def check_amount(self, prompts: list[list[int]]) -> None:
        """Refuses what would be too much to tell; changes nothing."""
        if len(prompts) * self.n > _CHOICES:
            raise Unfit(
                f"n: {len(prompts)} prompts with n={self.n} are {len(prompts) * self.n} choices; "
                f"the limit is {_CHOICES}: send them in several requests",
                "n",
            )
        scored = sum(map(len, prompts)) if self.echo else 0
        tokens = scored + len(prompts) * self.n * self.max_tokens
        check_logprobs("logprobs", tokens * (self.logprobs or 0))

    def command(self, prompt: list[int]) -> Sample:
        scored = self.echo and self.logprobs is not None
        if scored and self.stream:
            reason = "a prompt's logprobs are not streamed: leave out stream, echo or logprobs"
            raise Unfit(f"logprobs with echo and stream: {reason}", "logprobs")
        return Sample(
            op="",
            weights="",
            prompt=np.array(prompt, np.int32),
            params=self.params(self.max_tokens),
            num_samples=self.n,
            prompt_logprobs=scored,
            topk_prompt_logprobs=(self.logprobs or 0) if scored else 0,
            topk_sample_logprobs=self.logprobs or 0,
            controls=self.controls(),
        )


async def completions(request: Request) -> Response:
    """Continue prompts."""
    tenant, ends = tenant_of(request), endpoints_of(request)
    asked, _ = await read(request, CompletionRequest)
    target = await target_of(request, asked.model)
    text = await ends.texts.of(target.pool)
    encode = partial(asked.prompts, text)
    prompts = await work_on_text(request, asked.size, encode, "prompt")
    asked.check_amount(prompts)
    commands = [asked.command(prompt) for prompt in prompts]
    draw = ends.draws.begin(tenant, target, commands, stream=asked.stream)
    made = Completion(asked, prompts, text, target)
    try:
        if asked.stream:
            await draw.begun(HEARTBEAT_S)
            return EventStream(made.events(draw), target.headers)
        results = await while_connected(request, draw.results())
    except BaseException:
        draw.close()
        raise
    size = cells(results) + sum(map(len, prompts))
    return await answered(request, size, lambda: made.whole(results), target)
