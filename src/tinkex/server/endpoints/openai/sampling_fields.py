"""The fields by which the OpenAI-style routes say how to sample, as what the engine is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tinkex.engine.messages import SamplingControls, SamplingParams
from tinkex.server.endpoints.declared import Declared, Refused
from tinkex.server.endpoints.errors import Unfit
from tinkex.server.endpoints.values import (
    TOKEN_LIMIT,
    Chance,
    ModelName,
    Several,
    StopText,
    StopTexts,
    Token,
    at_most,
)

TOP_LIMIT = 1000
_STOP_IDS = 4096
_PENALTY = 2.0
_BIASES = 1024

LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""They tell a provider who asks, and for what; no answer depends on them."""


class StreamOptions(Declared):
    include_usage: bool = False
    include_obfuscation: bool = False


class SamplingFields(Declared):
    """What completions and chat have in common."""

    refused: ClassVar[Mapping[str, Refused]] = {
        "min_tokens": Refused("leave it out, or 0", unless=(0,)),
        "service_tier": Refused("there is one tier", unless=("auto", "default")),
        "store": Refused("nothing is kept here", unless=(False,)),
    }
    labels = LABELS

    model: ModelName
    temperature: float = Field(1.0, ge=0, le=1e6)
    top_p: Chance = 1.0
    top_k: int = Field(-1, ge=-1, le=TOKEN_LIMIT)
    n: int = Field(1, ge=1, le=1024)
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    stop: StopText | StopTexts | None = None
    stop_token_ids: Several[Token] | None = Field(None, max_length=_STOP_IDS)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-_PENALTY, le=_PENALTY)
    frequency_penalty: float = Field(0.0, ge=-_PENALTY, le=_PENALTY)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    logit_bias: Annotated[dict[str, float], at_most(_BIASES)] = Field(default_factory=dict)
    allowed_token_ids: Several[Token] | None = Field(None, max_length=_BIASES)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def stop_texts(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def params(self, max_tokens: int | None) -> SamplingParams:
        """Without stops of its own a request stops where `sample` does."""
        stops: tuple[Any, ...] = (*(self.stop_token_ids or ()), *self.stop_texts)
        return SamplingParams(
            max_tokens=max_tokens,
            seed=self.seed,
            stop=stops if stops or self.ignore_eos else None,
            temperature=self.temperature,
            top_k=self.top_k if self.top_k else -1,
            top_p=self.top_p,
            stop_at_eos=bool(stops) and not self.ignore_eos,
        )

    def controls(self) -> SamplingControls:
        allowed = self.allowed_token_ids
        return SamplingControls(
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias={_token(name): bias for name, bias in self.logit_bias.items()},
            allowed_tokens=None if allowed is None else tuple(allowed),
        )


def _token(name: str) -> int:
    if not (name.isascii() and name.isdigit()) or len(name) > 10:
        raise Unfit(f"logit_bias.{name[:128]} must be a token id", f"logit_bias.{name[:128]}")
    return int(name)
