"""Sampling results: what we write the official package reads, and the reverse."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from support.batches import build_tensor, finite32, tensors
from tinkex import types
from tinkex.types import (
    PromptAltTokens,
    SampledSequence,
    SampledWeights,
    SampleResponse,
    TopkLogprobs,
)
from tinkex.wire.protobuf import WireError, decode_sample_response, encode_sample_response

official_pb = pytest.importorskip("tinker.proto.tinker_public_pb2")
response_conv = pytest.importorskip("tinker.proto.response_conv")

VECTOR = bytes.fromhex("0a16080112082a0000002b0000001a08000000bf000080bf")


def test_the_published_vector_is_written_and_read() -> None:
    sequence = SampledSequence(
        "length", "id", np.array([42, 43], np.int32), np.array([-0.5, -1], np.float32)
    )
    assert encode_sample_response(SampleResponse([sequence])) == VECTOR
    read = decode_sample_response(VECTOR, ["the-id"]).sequences[0]
    assert (read.stop_reason, read.sequence_id) == ("length", "the-id")
    assert (read.tokens, read.logprobs) == ([42, 43], [-0.5, -1.0])


@st.composite
def topks(draw: st.DrawFn) -> TopkLogprobs:
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 3)))
    ids = draw(arrays(np.int32, shape, elements=st.integers(0, 5)))
    logprobs = draw(arrays(np.float32, shape, elements=st.sampled_from([-1.0, -2.5, -99999.0])))
    return TopkLogprobs(ids, logprobs)


@st.composite
def sequences(draw: st.DrawFn) -> SampledSequence:
    size = draw(st.integers(1, 5))
    return SampledSequence(
        draw(st.sampled_from(["stop", "length"])),
        "",
        draw(arrays(np.int32, size, elements=st.integers(0, 2**31 - 1))),
        draw(st.none() | arrays(np.float32, size, elements=finite32)),
        draw(st.none() | topks()),
    )


names = st.text(max_size=8)
maybe = st.none() | names


@st.composite
def responses(draw: st.DrawFn) -> SampleResponse:
    prompt = st.one_of(finite32, st.just(float("nan")))
    tensor = tensors().map(lambda description: build_tensor(types, description))
    return SampleResponse(
        draw(st.lists(sequences(), max_size=3)),
        draw(st.none() | arrays(np.float32, st.integers(1, 5), elements=prompt)),
        draw(st.none() | topks()),
        draw(st.none() | tensor),
        draw(st.integers(0, 2**31 - 1)),
        draw(st.none() | st.builds(PromptAltTokens, tensor, tensor)),
        weights=draw(st.none() | st.builds(SampledWeights, names, maybe, maybe)),
    )


@given(responses())
def test_both_packages_read_the_same_from_what_we_write(response: SampleResponse) -> None:
    body = encode_sample_response(response)
    ids = [f"id-{n}" for n in range(len(response.sequences))]
    ours = decode_sample_response(body, ids)
    theirs = response_conv.deserialize_sample_response(body)
    assert summary(ours) == summary(theirs) == summary(response)
    assert ours.weights == response.weights, "the others skip it"
    assert [sequence.sequence_id for sequence in ours.sequences] == ids


def summary(response: Any) -> dict[str, Any]:
    """What a user can read, as plain values of either package."""
    target, alternatives = response.target_prompt_logprobs, response.prompt_alt_tokens
    return {
        "sequences": [
            (item.stop_reason, item.tokens, item.logprobs, item.topk_logprobs)
            for item in response.sequences
        ],
        "prompt": response.prompt_logprobs,
        "topk": response.topk_prompt_logprobs,
        "target": None if target is None else tensor(target),
        "cached": response.prompt_cache_hit_tokens,
        "alternatives": None
        if alternatives is None
        else (tensor(alternatives.tokens), tensor(alternatives.logprobs)),
    }


def tensor(value: Any) -> tuple[Any, ...]:
    return value.dtype, value.data, value.sparse_crow_indices, value.sparse_col_indices


def test_the_number_of_sequences_must_be_the_promised_one() -> None:
    with pytest.raises(WireError, match="1 sequences for 2 promised ids"):
        decode_sample_response(VECTOR, ["a", "b"])


def made(**fields: Any) -> bytes:
    return bytes(official_pb.SampleResponse(**fields).SerializeToString())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\xff", "not a SampleResponse"),
        (made(sequences=[{"tokens": b"123"}]), r"sequences\[0\]\.tokens"),
        (made(sequences=[{"logprobs": b"123"}]), r"sequences\[0\]\.logprobs"),
        (made(sequences=[{"stop_reason": 7}]), r"sequences\[0\]\.stop_reason: is 7"),
        (made(sequences=[{}], prompt_logprobs=b"1"), "prompt_logprobs"),
        (
            made(sequences=[{}], topk_prompt_logprobs={"k": 2, "length": 3}),
            "topk_prompt_logprobs: has 0 ids and 0 logprobs for 3x2",
        ),
        (
            made(sequences=[{}], target_prompt_logprobs={"dense": b"1234", "dtype": 7}),
            "target_prompt_logprobs.dtype",
        ),
        (
            made(
                sequences=[{}], target_prompt_logprobs={"dense": b"1234", "dtype": 1, "shape": [9]}
            ),
            "target_prompt_logprobs: shape",
        ),
    ],
)
def test_damaged_results_are_named(body: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        decode_sample_response(body, ["id"])
