"""The result of sampling: sequences and what was asked about the prompt, as arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from tinkex.types.sampling import (
    PromptAltTokens,
    SampledSequence,
    SampledWeights,
    SampleResponse,
    StopReason,
    TopkLogprobs,
)
from tinkex.wire import schema_pb2 as pb
from tinkex.wire.errors import WireError
from tinkex.wire.tensors import tensor_from_message, tensor_to_message

_REASON_NUMBERS: dict[StopReason, pb.StopReason] = {
    "stop": pb.STOP_REASON_STOP,
    "length": pb.STOP_REASON_LENGTH,
}
_REASONS: dict[int, StopReason] = {number: name for name, number in _REASON_NUMBERS.items()}


def encode_sample_response(response: SampleResponse) -> bytes:
    """The body of a sampling result. Sequence ids do not travel: the submission answered them."""
    message = pb.SampleResponse(
        sequences=[_sequence_message(sequence) for sequence in response.sequences],
        prompt_cache_hit_tokens=response.prompt_cache_hit_tokens,
    )
    logprobs = response.prompt_logprobs_np
    if logprobs is None and response.prompt_logprobs is not None:
        logprobs = np.array(response.prompt_logprobs, dtype=np.float32)
    if logprobs is not None:
        message.prompt_logprobs = _bytes(logprobs, "<f4")
    if response.topk_prompt_logprobs_np is not None:
        message.topk_prompt_logprobs.CopyFrom(_topk_message(response.topk_prompt_logprobs_np))
    if response.target_prompt_logprobs is not None:
        message.target_prompt_logprobs.CopyFrom(tensor_to_message(response.target_prompt_logprobs))
    if response.prompt_alt_tokens is not None:
        alternatives = message.prompt_alt_tokens
        alternatives.tokens.CopyFrom(tensor_to_message(response.prompt_alt_tokens.tokens))
        alternatives.logprobs.CopyFrom(tensor_to_message(response.prompt_alt_tokens.logprobs))
    if response.weights is not None:
        weights = response.weights
        message.weights.CopyFrom(
            pb.SampledWeights(
                base_model=weights.base_model, path=weights.path, digest=weights.digest
            )
        )
    return bytes(message.SerializeToString())


def _sequence_message(sequence: SampledSequence) -> Any:
    tokens = sequence.tokens if sequence.tokens_np is None else sequence.tokens_np
    logprobs = sequence.logprobs if sequence.logprobs_np is None else sequence.logprobs_np
    message = pb.SampledSequence(
        stop_reason=_REASON_NUMBERS[sequence.stop_reason], tokens=_bytes(tokens, "<i4")
    )
    if logprobs is not None:
        message.logprobs = _bytes(logprobs, "<f4")
    if sequence.topk_logprobs_np is not None:
        message.topk_sampled_logprobs.CopyFrom(_topk_message(sequence.topk_logprobs_np))
    return message


def _bytes(values: Any, dtype: str) -> bytes:
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


def _topk_message(topk: TopkLogprobs) -> Any:
    length, k = topk.token_ids.shape
    return pb.TopkLogprobs(
        token_ids=_bytes(topk.token_ids, "<i4"),
        logprobs=_bytes(topk.logprobs, "<f4"),
        k=k,
        length=length,
    )


def decode_sample_response(body: bytes, sequence_ids: Sequence[str]) -> SampleResponse:
    """The values of a sampling result, each sequence stamped with its id; WireError when the body
    is damaged or holds another number of sequences."""
    try:
        message = pb.SampleResponse.FromString(body)
    except DecodeError as error:
        raise WireError("body", f"is not a SampleResponse: {error}") from error
    check_count(len(message.sequences), len(sequence_ids))
    return SampleResponse(
        sequences=[
            _sequence(sequence, sequence_id, f"sequences[{index}]")
            for index, (sequence, sequence_id) in enumerate(
                zip(message.sequences, sequence_ids, strict=True)
            )
        ],
        prompt_logprobs_np=_floats(message, "prompt_logprobs", ""),
        topk_prompt_logprobs_np=_topk(message, "topk_prompt_logprobs", ""),
        target_prompt_logprobs=_tensor(message, "target_prompt_logprobs"),
        prompt_cache_hit_tokens=message.prompt_cache_hit_tokens,
        prompt_alt_tokens=_alternatives(message),
        weights=_weights(message),
    )


def check_count(sequences: int, ids: int) -> None:
    if sequences != ids:
        raise WireError("sequences", f"holds {sequences} sequences for {ids} promised ids")


def _sequence(message: Any, sequence_id: str, place: str) -> SampledSequence:
    if message.stop_reason not in _REASONS:
        raise WireError(f"{place}.stop_reason", f"is {message.stop_reason}; known are 0 and 1")
    return SampledSequence(
        stop_reason=_REASONS[message.stop_reason],
        sequence_id=sequence_id,
        tokens_np=_array(message.tokens, "<i4", f"{place}.tokens"),
        logprobs_np=_floats(message, "logprobs", f"{place}."),
        topk_logprobs_np=_topk(message, "topk_sampled_logprobs", f"{place}."),
    )


def _floats(message: Any, name: str, place: str) -> NDArray[np.float32] | None:
    """An absent and an empty array both mean that there is none."""
    data = getattr(message, name)
    return _array(data, "<f4", f"{place}{name}") if data else None


def _array(data: bytes, dtype: str, place: str) -> NDArray[Any]:
    width = np.dtype(dtype).itemsize
    if len(data) % width:
        raise WireError(place, f"has {len(data)} bytes, not a multiple of {width}")
    return np.frombuffer(data, dtype=dtype).copy()


def _topk(message: Any, name: str, place: str) -> TopkLogprobs | None:
    if not message.HasField(name):
        return None
    topk = getattr(message, name)
    ids = _array(topk.token_ids, "<i4", f"{place}{name}.token_ids")
    logprobs = _array(topk.logprobs, "<f4", f"{place}{name}.logprobs")
    if not topk.length * topk.k:
        return None
    if len(ids) != topk.length * topk.k or len(ids) != len(logprobs):
        problem = f"has {len(ids)} ids and {len(logprobs)} logprobs for {topk.length}x{topk.k}"
        raise WireError(f"{place}{name}", problem)
    shape = (topk.length, topk.k)
    return TopkLogprobs(ids.reshape(shape), logprobs.reshape(shape))


def _tensor(message: Any, name: str) -> Any:
    return tensor_from_message(getattr(message, name), name) if message.HasField(name) else None


def _alternatives(message: Any) -> PromptAltTokens | None:
    if not message.HasField("prompt_alt_tokens"):
        return None
    parts = message.prompt_alt_tokens
    return PromptAltTokens(
        tokens=tensor_from_message(parts.tokens, "prompt_alt_tokens.tokens"),
        logprobs=tensor_from_message(parts.logprobs, "prompt_alt_tokens.logprobs"),
    )


def _weights(message: Any) -> SampledWeights | None:
    if not message.HasField("weights"):
        return None
    said = message.weights
    return SampledWeights(
        base_model=said.base_model,
        path=said.path if said.HasField("path") else None,
        digest=said.digest if said.HasField("digest") else None,
    )
