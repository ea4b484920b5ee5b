"""Sampling: what is asked for, and what comes back.

Results keep numpy arrays and make Python lists only when a list is read. Knows nothing of how a
sample travels or is drawn.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from tinkex.types.model_input import ModelInput
from tinkex.types.shortened import shown_with
from tinkex.types.strictness import Lenient, Strict, exported
from tinkex.types.tensor_data import TensorData

StopReason: TypeAlias = Literal["length", "stop"]

TopkList: TypeAlias = list[list[tuple[int, float]] | None]

EMPTY_CELL_LOGPROB = -99999.0
"""The logprob that, together with token id 0, marks an unused cell of a top-k table."""

_warned_keys: set[str] = set()


@exported
class SamplingParams(Lenient):
    """How to sample. `stop=None` stops at the model's end-of-sequence token; `stop=[]` never stops
    early. Unknown names are accepted, as the API always did, but each is warned about once."""

    max_tokens: int | None = Field(default=None, ge=0)
    seed: int | None = None
    stop: str | Sequence[str] | Sequence[int] | None = None
    temperature: float = Field(default=1, ge=0, allow_inf_nan=False)
    top_k: int = Field(default=-1, ge=-1)
    top_p: float = Field(default=1, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _warn_about_unknown_keys(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for key in value.keys() - cls.model_fields.keys() - _warned_keys:
                _warned_keys.add(key)
                known = ", ".join(cls.model_fields)
                text = f"SamplingParams ignores {key!r}; it knows {known}"
                warnings.warn(text, UserWarning, stacklevel=3)
        return value


def _int64(value: object) -> object:
    """Wire integers may exceed what a double holds; a bool is never one of them."""
    if isinstance(value, bool):
        raise ValueError("must be an integer, got bool")
    return value


_Count: TypeAlias = Annotated[int, BeforeValidator(_int64), Field(ge=0)]


@exported
class SampleRequest(Strict):
    """A request for samples, as it is sent."""

    num_samples: Annotated[int, BeforeValidator(_int64), Field(ge=1)] = 1
    prompt: ModelInput
    sampling_params: SamplingParams
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: _Count = 0
    topk_sample_logprobs: _Count = 0
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens_k: _Count = 0
    prompt_logprobs_last_n: Annotated[int, Field(ge=1)] | None = None
    record_stability_info: bool | None = None
    type: Literal["sample"] = "sample"


@dataclass(frozen=True, slots=True)
class TopkLogprobs:
    """The k likeliest tokens of n positions: ids (int32) and logprobs (float32), both (n, k).

    An unused cell holds id 0 with logprob -99999.
    """

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]

    def tolist(self) -> TopkList:
        """One list of (id, logprob) per position without unused cells; None where none is used."""
        unused = (self.token_ids == 0) & (self.logprobs == EMPTY_CELL_LOGPROB)
        columns = self.token_ids.shape[1]
        kept = columns - np.argmin(unused[:, ::-1], axis=1) if columns else [0] * len(unused)
        rows = zip(self.token_ids.tolist(), self.logprobs.tolist(), unused, kept, strict=True)
        return [
            None if not columns or empty[0] else list(zip(ids[:n], logprobs[:n], strict=True))
            for ids, logprobs, empty, n in rows
        ]


@exported
@dataclass(frozen=True)
class SampledSequence:
    """One continuation. Read `tokens_np` and `logprobs_np` to avoid making lists."""

    stop_reason: StopReason  # why it ended
    sequence_id: str  # for provenance
    tokens_np: NDArray[np.int32] | None = field(default=None, repr=False)  # those drawn
    logprobs_np: NDArray[np.float32] | None = field(default=None, repr=False)  # of each
    topk_logprobs_np: TopkLogprobs | None = field(default=None, repr=False)
    """Of the likeliest at each place."""
    _tokens_list: list[int] | None = field(default=None, repr=False)  # `tokens`, once asked for
    _logprobs_list: list[float] | None = field(default=None, repr=False)
    """`logprobs`, once asked for."""
    _topk_logprobs_list: TopkList | None = field(default=None, repr=False)
    """`topk_logprobs`, once asked for."""

    def __repr__(self) -> str:
        facts = {"stop_reason": repr(self.stop_reason), "sequence_id": repr(self.sequence_id)}
        logprobs = self._logprobs_list if self.logprobs_np is None else self.logprobs_np
        tokens = (self._tokens_list or []) if self.tokens_np is None else self.tokens_np
        return shown_with("SampledSequence", facts, tokens=tokens, logprobs=logprobs)

    @cached_property
    def tokens(self) -> list[int]:
        """The token ids, the one that ended it included."""
        if self.tokens_np is None:
            return self._tokens_list or []
        tokens: list[int] = self.tokens_np.tolist()
        return tokens

    @cached_property
    def logprobs(self) -> list[float] | None:
        """The logprob of each token as it was sampled."""
        return self._logprobs_list if self.logprobs_np is None else self.logprobs_np.tolist()

    @cached_property
    def topk_logprobs(self) -> TopkList | None:
        """Per position: [(token id, logprob), …], likeliest first, or None."""
        if self.topk_logprobs_np is None:
            return self._topk_logprobs_list
        return self.topk_logprobs_np.tolist()


@dataclass(frozen=True)
class PromptAltTokens:
    """Other tokens drawn at each prompt position: ids (int64) and logprobs (float32), both
    [len(prompt) - 1, k]."""

    tokens: TensorData
    logprobs: TensorData


@dataclass(frozen=True)
class SampledWeights:
    """Which weights made a sample: the base model's own, or with those of an adapter, at `path`.

    `digest` is the SHA-256 of the adapter's manifest, which lists the hash of every file; two
    samples with the same one come from the same bytes. Weights without a name have no path, and no
    digest until they are on disk: a sampler answers before that.
    """

    base_model: str
    path: str | None = None
    digest: str | None = None


@exported
@dataclass(frozen=True)
class SampleResponse:
    """All continuations of one prompt, what was asked about the prompt itself, and which weights
    made them, where the server says so."""

    sequences: Sequence[SampledSequence]  # as many as were asked for
    prompt_logprobs_np: NDArray[np.float32] | None = field(default=None, repr=False)
    """Of the prompt's tokens, NaN for the first."""
    topk_prompt_logprobs_np: TopkLogprobs | None = field(default=None, repr=False)
    """Of the likeliest at each place of it."""
    target_prompt_logprobs: TensorData | None = None  # of the tokens asked about
    prompt_cache_hit_tokens: int = 0  # of the prompt that were not computed again
    prompt_alt_tokens: PromptAltTokens | None = None  # drawn in place of the prompt's
    _prompt_logprobs_list: list[float | None] | None = field(default=None, repr=False)
    """`prompt_logprobs`, once asked for."""
    _topk_prompt_logprobs_list: TopkList | None = field(default=None, repr=False)
    """`topk_prompt_logprobs`, once asked for."""
    weights: SampledWeights | None = None  # that made them

    def __repr__(self) -> str:
        extras = ("target_prompt_logprobs", "prompt_alt_tokens", "weights")
        facts = {name: repr(value) for name in extras if (value := getattr(self, name)) is not None}
        if self.prompt_cache_hit_tokens:
            facts["prompt_cache_hit_tokens"] = repr(self.prompt_cache_hit_tokens)
        scored = self.prompt_logprobs_np
        logprobs = self._prompt_logprobs_list if scored is None else scored
        lists = {"sequences": self.sequences, "prompt_logprobs": logprobs}
        return shown_with("SampleResponse", facts, **lists)

    @cached_property
    def prompt_logprobs(self) -> list[float | None] | None:
        """One entry per prompt token; None where none was computed (always the first)."""
        if self.prompt_logprobs_np is None:
            return self._prompt_logprobs_list
        return [None if value != value else value for value in self.prompt_logprobs_np.tolist()]

    @cached_property
    def topk_prompt_logprobs(self) -> TopkList | None:
        """Per prompt token: [(token id, logprob), …], likeliest first, or None."""
        if self.topk_prompt_logprobs_np is None:
            return self._topk_prompt_logprobs_list
        return self.topk_prompt_logprobs_np.tolist()


class CreateSamplingSessionRequest(Strict):
    """Open a sampler of a base model or of saved weights."""

    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None
    type: Literal["create_sampling_session"] = "create_sampling_session"


class CreateSamplingSessionResponse(Lenient):
    """The id of the new sampler."""

    type: Literal["create_sampling_session"] = "create_sampling_session"
    sampling_session_id: str


class JoinSamplingSessionRequest(Strict):
    """Announces another process that uses a sampler."""

    sampling_session_id: str
    type: Literal["join_sampling_session"] = "join_sampling_session"


class JoinSamplingSessionResponse(Lenient):
    """The number that tells this process from the others."""

    type: Literal["join_sampling_session"] = "join_sampling_session"
    client_counter: int


class GetSamplerResponse(Lenient):
    """What a sampler serves."""

    sampler_id: str
    base_model: str
    model_path: str | None = None
