"""Translates between the protocol's binary messages and the engine's. Pure.

Large ones take CPU time: call it off the event loop.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tinkex.engine.messages import (
    Csr,
    Datum,
    ForwardBackwardResult,
    SampleResult,
    Sequence,
    Tensor,
    TopK,
)
from tinkex.server.refusals import Refusal
from tinkex.types.csr import Csr as WireCsr
from tinkex.types.sampling import (
    PromptAltTokens,
    SampledSequence,
    SampledWeights,
    SampleResponse,
    TopkLogprobs,
)
from tinkex.types.tensor_data import TensorData
from tinkex.wire.calls import ForwardBackwardCall, WireDatum, WireTensor
from tinkex.wire.framing import LENGTH, VARINT, Message, signed
from tinkex.wire.limits import MAX_FWDBWD_SEQ_ID
from tinkex.wire.protobuf import (
    WireError,
    decode_forward_backward,
    decode_forward_backward_output,
    encode_forward_backward_output,
    encode_sample_response,
)


class Header(NamedTuple):
    """What a forward/backward body says about itself before its datums are looked at."""

    model_id: str
    seq_id: int
    forward_only: bool


class ForwardRequest(NamedTuple):
    """A decoded forward/backward request."""

    data: tuple[Datum, ...]  # in the order of the request
    loss_fn: str  # a built-in one, or "custom"
    loss_config: Mapping[str, float | str]  # its settings
    forward_only: bool  # no gradient is wanted
    tokens: int  # of all data
    digest: bytes  # of its meaning, not its bytes


def peek(body: bytes) -> Header:
    """Read as much of a header as a damaged body allows; `Refusal` if it cannot be addressed."""
    model_id, seq_id, forward_only = "", 0, False
    message = Message(body)
    try:
        for number, kind, start, end in message.fields(0, len(body)):
            if number == 1 and kind == LENGTH:
                model_id = message.text(start, end, "model_id")
            elif number == 2 and kind == VARINT:
                seq_id = signed(start)
            elif number == 6 and kind == VARINT:
                forward_only = bool(start)
    except WireError as error:
        if not model_id or not 1 <= seq_id <= MAX_FWDBWD_SEQ_ID:
            raise Refusal(f"the body is not a ForwardBackwardRequest: {error}") from None
    if not model_id:
        raise Refusal("model_id is required: the body is not a ForwardBackwardRequest")
    if not 1 <= seq_id <= MAX_FWDBWD_SEQ_ID:
        raise Refusal(f"seq_id is {seq_id}; it must be between 1 and {MAX_FWDBWD_SEQ_ID}")
    return Header(model_id, seq_id, forward_only)


def decode(body: bytes) -> ForwardRequest:
    """Decode a whole body; raises `Refusal` naming the field."""
    try:
        call = decode_forward_backward(body)
        data = tuple(_datum(datum, index) for index, datum in enumerate(call.data))
    except WireError as error:
        raise Refusal(str(error)) from None
    if not data:
        raise Refusal("data is empty: give at least one datum")
    tokens = sum(len(datum.tokens) for datum in data)
    return ForwardRequest(
        data, call.loss_fn, call.loss_fn_config, call.forward_only, tokens, _digest(call)
    )


class Examined(NamedTuple):
    """A parsed body: its address, its request or why that cannot be read, its digest."""

    header: Header
    content: ForwardRequest | Refusal
    digest: bytes


def examine(body: bytes) -> Examined:
    """Read a body that must at least be addressed. Damage in the rest becomes part of the
    answer."""
    header = peek(body)
    try:
        content: ForwardRequest | Refusal = decode(body)
    except Refusal as refusal:
        content = refusal
    if isinstance(content, ForwardRequest):
        return Examined(header, content, content.digest)
    return Examined(header, content, zlib.crc32(body).to_bytes(4, "little"))


def encode_forward(result: ForwardBackwardResult) -> bytes:
    return encode_forward_backward_output(result.outputs, result.metrics)


def same_result(one: bytes, other: bytes) -> bool:
    """Whether two forward/backward results hold the same numbers, to the last bit."""
    first, second = (decode_forward_backward_output(body) for body in (one, other))
    if first.metrics != second.metrics:
        return False
    return len(first.loss_fn_outputs) == len(second.loss_fn_outputs) and all(
        before.keys() == after.keys()
        and all(
            before[name].to_numpy().tobytes() == after[name].to_numpy().tobytes() for name in before
        )
        for before, after in zip(first.loss_fn_outputs, second.loss_fn_outputs, strict=True)
    )


def encode_sample(result: SampleResult, weights: SampledWeights) -> bytes:
    response = SampleResponse(
        sequences=[_sequence(sequence) for sequence in result.sequences],
        prompt_logprobs_np=result.prompt_logprobs,
        topk_prompt_logprobs_np=_topk(result.topk_prompt_logprobs),
        target_prompt_logprobs=_tensor_data(result.target_prompt_logprobs),
        prompt_cache_hit_tokens=result.cached_tokens,
        prompt_alt_tokens=_alternatives(result.alt_tokens),
        weights=weights,
    )
    return encode_sample_response(response)


def _datum(datum: WireDatum, index: int) -> Datum:
    try:
        tokens = datum.tokens
    except WireError as error:
        raise error.inside(f"data[{index}]") from None
    return Datum(tokens, {name: _tensor(tensor) for name, tensor in datum.inputs.items()})


def _tensor(tensor: WireTensor) -> Tensor:
    if isinstance(tensor, WireCsr):
        return Csr(tensor.values, tensor.crow, tensor.col, tensor.shape)
    return tensor


def _digest(call: ForwardBackwardCall) -> bytes:
    """A checksum and a size: tell a repeated request from another one, quickly. They guard
    against mistakes of the request's own sender, not against an enemy."""
    config = sorted(call.loss_fn_config.items())
    head = repr((call.model_id, call.seq_id, call.loss_fn, config))
    parts: list[Any] = [head.encode(), repr((call.forward_only, len(call.data))).encode()]
    for datum in call.data:
        parts.append(np.ascontiguousarray(datum.tokens))
        for name in sorted(datum.inputs):
            _add_input(parts, name, datum.inputs[name])
    crc = size = 0
    for part in parts:
        crc, size = zlib.crc32(part, crc), size + len(part)
    return crc.to_bytes(4, "little") + size.to_bytes(8, "little")


def _add_input(parts: list[Any], name: str, tensor: WireTensor) -> None:
    if isinstance(tensor, WireCsr):
        parts.append(_described(name, tensor.shape, tensor.values.dtype))
        parts += map(np.ascontiguousarray, (tensor.values, tensor.crow, tensor.col))
    else:
        parts.append(_described(name, tensor.shape, tensor.dtype))
        parts.append(np.ascontiguousarray(tensor))


@lru_cache(maxsize=1024)  # a batch repeats a handful of names and shapes
def _described(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    return repr((name, shape, str(dtype))).encode()


def _sequence(sequence: Sequence) -> SampledSequence:
    return SampledSequence(
        stop_reason=sequence.stop_reason,
        sequence_id="",
        tokens_np=sequence.tokens,
        logprobs_np=sequence.logprobs,
        topk_logprobs_np=_topk(sequence.topk),
    )


def _topk(topk: TopK | None) -> TopkLogprobs | None:
    return None if topk is None else TopkLogprobs(topk.ids, topk.logprobs)


def _tensor_data(tensor: Tensor | None) -> TensorData | None:
    if tensor is None:
        return None
    if isinstance(tensor, Csr):
        return TensorData(tensor.values, "float32", tensor.shape, tensor.crow, tensor.col)
    return TensorData.from_numpy(tensor)


def _alternatives(topk: TopK | None) -> PromptAltTokens | None:
    if topk is None:
        return None
    tokens = TensorData.from_numpy(topk.ids.astype(np.int64))
    return PromptAltTokens(tokens, TensorData.from_numpy(topk.logprobs))
