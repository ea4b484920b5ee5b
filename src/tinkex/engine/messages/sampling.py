"""Commands about weights that are served and samples drawn from them, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages.data import FloatArray, IntArray, Routes, Tensor
from tinkex.engine.messages.references import WeightsRef


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Make the adapter of `source` (PEFT layout) sampleable as `weights`. Loading the same name
    again is a no-op. The base model itself is always there under the name ""."""

    op: str
    weights: str
    source: WeightsRef


@dataclass(frozen=True, slots=True)
class DropWeights:
    """Free the memory of loaded weights."""

    op: str
    weights: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The protocol's sampling parameters: how many tokens, how they are drawn, where they end."""

    max_tokens: int | None = None  # None: as many as the context has room for
    seed: int | None = None  # None: the engine draws one
    stop: tuple[int | str, ...] | None = None  # None: the end-of-sequence ids; empty: never early
    temperature: float = 1.0  # 0 takes the likeliest token
    top_k: int = -1  # -1: all
    top_p: float = 1.0  # 1: all
    stop_at_eos: bool = False  # end-of-sequence ids end a sequence too, besides `stop`


@dataclass(frozen=True, slots=True)
class SamplingControls:
    """What steers draws beside the protocol's parameters; the defaults change nothing.

    In this order: only `allowed_tokens` stay; `logit_bias` is added to its tokens' logits;
    `repetition_penalty` divides the logits above 0, and multiplies those below, of every token of
    the prompt or the sample; `frequency_penalty` is taken off for each time a token is in the
    sample, `presence_penalty` once. Then comes the temperature; `min_p` keeps the tokens at least
    that part as likely as the likeliest; top_k and top_p follow. Logprobs in results stay those of
    the model's own distribution, before all of these.
    """

    min_p: float = 0.0  # minimum probability, relative to the likeliest token's
    presence_penalty: float = 0.0  # subtracted for every token that is in the sample
    frequency_penalty: float = 0.0  # subtracted for each time it is there
    repetition_penalty: float = 1.0  # divides logits of tokens in prompt or sample
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # by token id, added to its logit
    allowed_tokens: tuple[int, ...] | None = None  # None: all tokens


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Text, one JSON value of a schema (which is given as JSON), text: an answer or a tool call."""

    begin: str = ""
    schema: str = '{"type": "object"}'
    end: str = ""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a sample's text must be: one of the forms, and with a `separator` any number, each but
    the first after it. With `thinking_end` free text up to that comes first.

    A sample ends when its text is complete, or where it may be complete and an end-of-sequence or
    stop id is drawn; before that, those are not drawn."""

    forms: tuple[AnswerForm, ...]
    separator: str | None = None
    thinking_end: str | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """The most `tokens` of reasoning that an answer may begin with. If it has begun with `opened`
    and not reached `closed` by then, its next tokens are those of `ending`."""

    tokens: int
    opened: str
    closed: str
    ending: str
    inside: bool = False  # whether the prompt has opened it already


@dataclass(frozen=True, slots=True)
class Sample:
    """Draw after a prompt, and report logprobs of it; answered with `SampleResult`."""

    op: str  # named in every event about it
    weights: str  # name of loaded weights; empty: the base model
    prompt: IntArray  # token ids
    params: SamplingParams  # how to draw, and when to stop
    num_samples: int = 1  # samples of the one prompt
    prompt_logprobs: bool = False  # whether the prompt's own logprobs are reported
    prompt_logprobs_last_n: int | None = None  # only for its last tokens; None: all
    topk_prompt_logprobs: int = 0  # likeliest tokens reported at each place of the prompt
    topk_sample_logprobs: int = 0  # the same at each place of a sample
    # tokens whose logprobs are reported at the prompt's places
    target_prompt_logprobs: Tensor | None = None
    prompt_alt_tokens_k: int = 0  # alternatives drawn at each place of the prompt
    stream: bool = False  # whether `Progress` is sent
    lane: str = ""  # the tenant, any text: lanes share the engine equally
    # controls that the protocol does not have
    controls: SamplingControls = field(default_factory=SamplingControls)
    grammar: Grammar | None = None  # that the answer must follow
    thinking: Thinking | None = None  # how much of it may be reasoning; None: no limit
    context: int | None = None
    """The most tokens of prompt and sample together, if fewer than the model allows."""
    routes: bool = False
    """Whether the result includes the experts that tokens went to, if the model has any."""

    def room(self, context: int) -> int:
        """How long a sample may be if prompt and sample have at most `context` tokens; negative if
        the prompt does not fit."""
        left, asked = self._most(context) - len(self.prompt), self.params.max_tokens
        if self.prompt_logprobs and asked == 1 and left == 0:
            return 0  # `compute_logprobs` asks for a token that it does not need
        if asked is None:
            return left or -1
        return asked if asked <= left else -1

    def too_long(self, context: int) -> str:
        """Why there is no room, in the hosted service's words, which programs look for."""
        asked = "at least 1" if self.params.max_tokens is None else self.params.max_tokens
        return (
            "max_tokens: Prompt length plus max_tokens exceeds the model's context window: "
            f"{len(self.prompt)} prompt tokens + {asked} max_tokens > {self._most(context)}; "
            "shorten the prompt or lower max_tokens"
        )

    def _most(self, context: int) -> int:
        return context if self.context is None else min(context, self.context)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the sample `target`: it answers `Failed` with kind "cancelled" unless already done."""

    op: str
    target: str


@dataclass(frozen=True, slots=True)
class TopK:
    """`ids` and `logprobs` are [rows, k]; an empty cell is id 0 with logprob -99999.0."""

    ids: NDArray[np.int32]
    logprobs: FloatArray


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence of a sample: what was drawn and why it ended."""

    tokens: NDArray[np.int32]
    logprobs: FloatArray
    stop_reason: Literal["stop", "length"]
    topk: TopK | None = None
    routes: Routes | None = None
    """Experts of all tokens of prompt and sample except the last, which was not computed."""


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Answer to `Sample`."""

    sequences: tuple[Sequence, ...]  # in the order of their seeds
    prompt_logprobs: FloatArray | None = None  # NaN where there is none
    topk_prompt_logprobs: TopK | None = None  # as many as were asked for
    target_prompt_logprobs: Tensor | None = None  # of the targets that were asked for
    alt_tokens: TopK | None = None  # [prompt - 1, k] independent draws
    cached_tokens: int = 0  # tokens of the prompt found in the cache
