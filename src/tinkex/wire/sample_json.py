"""Sampling in JSON: the request, which always travels so, and the result, as older servers send it.

The request is put together from ready pieces: a prompt's tokens go from their list or array to text
in one step, without a validated model in between.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic_core import to_json

from tinkex.types.model_input import EncodedTextChunk, ModelInput
from tinkex.types.sampling import (
    PromptAltTokens,
    SampledSequence,
    SampleResponse,
    SamplingParams,
)
from tinkex.types.tensor_data import TensorData, tensor_fields
from tinkex.wire.errors import WireError
from tinkex.wire.json_text import dumps, encode_request
from tinkex.wire.samples import check_count


def encode_sample(
    *,
    prompt: ModelInput,
    sampling_params: SamplingParams,
    sampling_session_id: str,
    seq_id: int,
    num_samples: int = 1,
    prompt_logprobs: bool = False,
    topk_prompt_logprobs: int = 0,
    topk_sample_logprobs: int = 0,
    target_prompt_logprobs: TensorData | None = None,
    prompt_alt_tokens_k: int = 0,
    prompt_logprobs_last_n: int | None = None,
    record_stability_info: bool = False,
) -> bytes:
    """The body of an `asample` request."""
    tail: dict[str, Any] = {
        "sampling_session_id": sampling_session_id,
        "seq_id": seq_id,
        "prompt_logprobs": prompt_logprobs,
        "topk_prompt_logprobs": topk_prompt_logprobs,
        "topk_sample_logprobs": topk_sample_logprobs,
        "target_prompt_logprobs": target_prompt_logprobs and tensor_fields(target_prompt_logprobs),
        "prompt_alt_tokens_k": prompt_alt_tokens_k,
        "prompt_logprobs_last_n": prompt_logprobs_last_n,
        "record_stability_info": record_stability_info,
        "type": "sample",
    }
    kept = {name: value for name, value in tail.items() if value is not None}
    return b"".join(
        (
            b'{"num_samples":%d,"prompt":{"chunks":[' % num_samples,
            b",".join(_chunk(chunk) for chunk in prompt.chunks),
            b']},"sampling_params":',
            encode_request(sampling_params),
            b",",
            dumps(kept)[1:],
        )
    )


def _chunk(chunk: Any) -> bytes:
    if isinstance(chunk, EncodedTextChunk):
        return b'{"tokens":' + to_json(list(chunk.tokens)) + b',"type":"encoded_text"}'
    return encode_request(chunk)


def sample_response_from_json(value: Any, sequence_ids: Sequence[str]) -> SampleResponse:
    """The JSON form of a sampling result, with lists where the binary form has arrays."""
    if not isinstance(value, dict) or not isinstance(value.get("sequences"), list):
        raise WireError("sequences", "must be a list of sequences")
    sequences = value["sequences"]
    check_count(len(sequences), len(sequence_ids))
    return SampleResponse(
        sequences=[
            _sequence(item, sequence_id, f"sequences[{index}]")
            for index, (item, sequence_id) in enumerate(zip(sequences, sequence_ids, strict=True))
        ],
        prompt_logprobs_np=_logprobs(value.get("prompt_logprobs"), "prompt_logprobs"),
        target_prompt_logprobs=_tensor(value, "target_prompt_logprobs"),
        prompt_cache_hit_tokens=int(value.get("prompt_cache_hit_tokens") or 0),
        prompt_alt_tokens=_alternatives(value.get("prompt_alt_tokens")),
        _topk_prompt_logprobs_list=_topk(value.get("topk_prompt_logprobs"), "topk_prompt_logprobs"),
    )


def _sequence(item: Any, sequence_id: str, place: str) -> SampledSequence:
    if not isinstance(item, dict):
        raise WireError(place, f"must be an object, got {type(item).__name__}")
    if (reason := item.get("stop_reason")) not in ("stop", "length"):
        raise WireError(f"{place}.stop_reason", "must be 'stop' or 'length'")
    topk = item.get("topk_logprobs", item.get("topk_sampled_logprobs"))
    return SampledSequence(
        stop_reason=reason,
        sequence_id=sequence_id,
        tokens_np=_numbers(item.get("tokens", []), np.int32, f"{place}.tokens"),
        logprobs_np=_logprobs(item.get("logprobs"), f"{place}.logprobs"),
        _topk_logprobs_list=_topk(topk, f"{place}.topk_logprobs"),
    )


def _numbers(values: Any, dtype: Any, place: str) -> Any:
    try:
        array = np.asarray(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(place, "must be a list of numbers") from error
    if array.ndim != 1:
        raise WireError(place, "must be a flat list of numbers")
    return array


def _logprobs(values: Any, place: str) -> Any:
    """None inside the list becomes NaN, as in the binary form."""
    return None if values is None else _numbers(values, np.float32, place)


def _topk(rows: Any, place: str) -> Any:
    if rows is None:
        return None
    try:
        return [
            None if row is None else [(int(token), float(logprob)) for token, logprob in row]
            for row in rows
        ]
    except (TypeError, ValueError) as error:
        raise WireError(place, "must hold null or lists of [token, logprob]") from error


def _tensor(value: dict[str, Any], name: str) -> TensorData | None:
    fields = value.get(name)
    return None if fields is None else tensor_from_json(fields, name)


def tensor_from_json(fields: Any, place: str) -> TensorData:
    """A tensor object as JSON writes it; WireError names what is wrong with it."""
    if not isinstance(fields, dict):
        raise WireError(place, f"must be a tensor object, got {type(fields).__name__}")
    known = ("data", "dtype", "shape", "sparse_crow_indices", "sparse_col_indices")
    if unknown := sorted(fields.keys() - set(known)):
        raise WireError(f"{place}.{unknown[0]}", f"is not known; known are {', '.join(known)}")
    try:
        return TensorData(**fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(place, str(error)) from error


def _alternatives(value: Any) -> PromptAltTokens | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise WireError("prompt_alt_tokens", "must be an object with tokens and logprobs")
    return PromptAltTokens(
        tokens=tensor_from_json(value.get("tokens"), "prompt_alt_tokens.tokens"),
        logprobs=tensor_from_json(value.get("logprobs"), "prompt_alt_tokens.logprobs"),
    )
