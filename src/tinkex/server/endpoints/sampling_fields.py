"""The fields by which the OpenAI-style routes say how to sample, as what the engine is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tinkex.engine.messages import SamplingParams
from tinkex.server.endpoints.declared import Declared, Refused

TOKEN_LIMIT = 2**31 - 1
TOP_LIMIT = 1000
_STOPS = 64
_STOP_IDS = 4096

Token = Annotated[int, Field(ge=0, le=TOKEN_LIMIT)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
StopTexts = Annotated[list[StopText], Field(max_length=_STOPS)]
ModelName = Annotated[str, Field(min_length=1, max_length=4096)]
Chance = Annotated[float, Field(gt=0, le=1)]

CONTROLS: Mapping[str, Refused] = {
    "frequency_penalty": Refused("leave it out, or 0", unless=(0, 0.0)),
    "presence_penalty": Refused("leave it out, or 0", unless=(0, 0.0)),
    "repetition_penalty": Refused("leave it out, or 1", unless=(1, 1.0)),
    "logit_bias": Refused("leave it out, or empty", unless=({},)),
    "min_p": Refused("leave it out, or 0", unless=(0, 0.0)),
    "min_tokens": Refused("leave it out, or 0", unless=(0,)),
}
LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""They tell a provider who asks, and for what; no answer depends on them."""


class StreamOptions(Declared):
    include_usage: bool = False
    include_obfuscation: bool = False


class SamplingFields(Declared):
    """What completions and chat have in common."""

    refused: ClassVar[Mapping[str, Refused]] = {
        **CONTROLS,
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
    stop_token_ids: list[Token] | None = Field(None, max_length=_STOP_IDS)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
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
