"""An `asample` body, read and checked, as what the engine is asked. Knows nothing of who asks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages import Csr, Sample, SamplingParams, Tensor
from tinkex.server.protocol import requests
from tinkex.server.protocol.json_body import parse as parse_json
from tinkex.server.refusals import Refusal
from tinkex.types import sampling as types
from tinkex.types.model_input import EncodedTextChunk, ModelInput
from tinkex.types.tensor_data import TensorData

_TARGETS = "target_prompt_logprobs"


class SampleRequest(NamedTuple):
    """An accepted sample. `command` still lacks its op, weights and lane; `digest` is of its
    meaning."""

    sampler_id: str
    seq_id: int
    command: Sample
    digest: bytes


def parse(body: bytes, samples_limit: int) -> SampleRequest:
    """Read a body; raises `Refusal` with the field that is wrong."""
    values = parse_json(body)
    asked = requests.ASAMPLE.read(values)
    assert asked.sampling_session_id is not None
    assert asked.seq_id is not None
    if asked.num_samples > samples_limit:
        raise Refusal(f"num_samples is {asked.num_samples}; it must be at most {samples_limit}")
    return SampleRequest(asked.sampling_session_id, asked.seq_id, _command(asked), _digest(values))


def _command(asked: types.SampleRequest) -> Sample:
    prompt = _prompt(asked.prompt)
    command = Sample(
        op="",
        weights="",
        prompt=prompt,
        params=_params(asked.sampling_params),
        num_samples=asked.num_samples,
        prompt_logprobs=bool(asked.prompt_logprobs),
        prompt_logprobs_last_n=asked.prompt_logprobs_last_n,
        topk_prompt_logprobs=asked.topk_prompt_logprobs,
        topk_sample_logprobs=asked.topk_sample_logprobs,
        prompt_alt_tokens_k=asked.prompt_alt_tokens_k,
    )
    if asked.target_prompt_logprobs is None:
        return command
    return replace(
        command, target_prompt_logprobs=_targets(asked.target_prompt_logprobs, len(prompt))
    )


def _prompt(prompt: ModelInput) -> NDArray[np.int32]:
    """The tokens, in the buffers in which they were checked."""
    arrays = []
    for index, chunk in enumerate(prompt.chunks):
        if not isinstance(chunk, EncodedTextChunk):
            where = f"prompt.chunks[{index}]"
            raise Refusal(f"{where} is of type {chunk.type!r}: the served models read text only")
        arrays.append(chunk.ids)
    tokens = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32)
    if not len(tokens):
        raise Refusal("prompt holds no tokens: give at least one")
    return tokens


def _params(asked: types.SamplingParams) -> SamplingParams:
    stop = asked.stop
    return SamplingParams(
        max_tokens=asked.max_tokens,
        seed=asked.seed,
        stop=None if stop is None else _stops(stop),
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
    )


def _stops(stop: Any) -> tuple[int, ...] | tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _digest(values: Mapping[str, Any]) -> bytes:
    meaning = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(meaning.encode(), digest_size=16).digest()


def _targets(given: TensorData, prompt_length: int) -> Tensor:
    """Tokens whose logprobs are requested, one row per later token of the prompt."""
    shape = given.shape or []
    if len(shape) != 2 or shape[0] != prompt_length - 1:
        raise Refusal(f"{_TARGETS}.shape must be [{prompt_length - 1}, K]: one row per later token")
    csr = given.csr
    values = given.to_numpy() if csr is None else csr.values
    _check_tokens(values)
    return values if csr is None else Csr(csr.values, csr.crow, csr.col, (shape[0], shape[1]))


def _check_tokens(values: NDArray[Any]) -> None:
    low, high = requests.TARGET_TOKENS
    if values.size and not (low <= int(values.min()) and int(values.max()) <= high):
        raise Refusal(f"{_TARGETS}.data must hold integers from {low} to {high}")
