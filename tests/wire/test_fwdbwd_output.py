"""Results of a forward/backward: what we write the official package reads, and the reverse."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from support.batches import finite32, names
from tinkex.wire.protobuf import (
    WireError,
    decode_forward_backward_output,
    encode_forward_backward_output,
)

official_pb = pytest.importorskip("tinker.proto.tinker_public_pb2")
response_conv = pytest.importorskip("tinker.proto.response_conv")

VECTOR = bytes.fromhex(
    "0a0b41727261795265636f72641232122e0a086c6f6770726f627312220a0c000080bf000000bf000080be12100000"
    "0000000000000c00000000000000180118011a130a086c6f73733a73756d11000000000000e83f"
)


def test_the_published_vector_is_written_and_read() -> None:
    outputs = [{"logprobs": np.array([-1, -0.5, -0.25], np.float32)}]
    assert encode_forward_backward_output(outputs, {"loss:sum": 0.75}) == VECTOR
    read = decode_forward_backward_output(VECTOR)
    assert read.loss_fn_output_type == "ArrayRecord"
    assert read.loss_fn_outputs[0]["logprobs"].data == [-1.0, -0.5, -0.25]
    assert read.metrics == {"loss:sum": 0.75}


shapes = array_shapes(min_dims=1, max_dims=3, max_side=4)
tables = st.one_of(arrays(np.float32, shapes, elements=finite32), arrays(np.int64, shapes))
datum_outputs = st.lists(names, min_size=1, max_size=3, unique=True).flatmap(
    lambda keys: st.lists(st.fixed_dictionaries(dict.fromkeys(keys, tables)), max_size=5)
)
metrics = st.dictionaries(
    st.tuples(names.filter(lambda n: ":" not in n), st.sampled_from(["sum", "mean"])).map(":".join),
    st.floats(allow_nan=False),
    max_size=3,
)


@given(datum_outputs, metrics)
def test_both_packages_read_the_same_from_what_we_write(
    outputs: list[dict[str, np.ndarray]], metrics: dict[str, float]
) -> None:
    body = encode_forward_backward_output(outputs, metrics)
    ours = decode_forward_backward_output(body)
    theirs = response_conv.deserialize_forward_backward_output(body)
    assert ours.metrics == theirs.metrics == metrics
    assert len(ours.loss_fn_outputs) == len(theirs.loss_fn_outputs) == len(outputs)
    for mine, other, wanted in zip(
        ours.loss_fn_outputs, theirs.loss_fn_outputs, outputs, strict=True
    ):
        assert mine.keys() == other.keys() == wanted.keys()
        for name, array in wanted.items():
            assert np.array_equal(mine[name].to_numpy(), array)
            assert mine[name].shape == other[name].shape == list(array.shape)
            assert mine[name].data == other[name].data


def record(**field: Any) -> bytes:
    message = official_pb.ForwardBackwardOutput(loss_fn_output_type="a.b:Rec")
    added = message.loss_fn_outputs.add(num_datums=field.pop("num_datums", 0))
    added.fields["x"].CopyFrom(official_pb.BatchedTensor(**field))
    return bytes(message.SerializeToString())


def bare(num_datums: int) -> bytes:
    """A record of that many datums without any output."""
    message = official_pb.ForwardBackwardOutput(loss_fn_output_type="a.b:Rec")
    message.loss_fn_outputs.add(num_datums=num_datums)
    return bytes(message.SerializeToString())


def int64(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def test_bfloat16_and_int32_are_widened() -> None:
    half = (np.array([1.5, -2.0], np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    read = decode_forward_backward_output(record(data=half, offsets=int64(0, 2, 4), dtype=4))
    assert [out["x"].data for out in read.loss_fn_outputs] == [[1.5], [-2.0]]
    assert read.loss_fn_output_type == "Rec"
    ints = np.array([7, 8], "<i4").tobytes()
    read = decode_forward_backward_output(record(data=ints, offsets=int64(0, 8), dtype=3))
    assert (read.loss_fn_outputs[0]["x"].dtype, read.loss_fn_outputs[0]["x"].data) == (
        "int64",
        [7, 8],
    )


def test_results_are_writable_and_share_one_buffer_per_field() -> None:
    outputs = [{"logprobs": np.ones(3, np.float32)} for _ in range(2)]
    read = decode_forward_backward_output(encode_forward_backward_output(outputs, {}))
    first, second = (out["logprobs"].to_numpy() for out in read.loss_fn_outputs)
    assert first.base is second.base
    first[0] = 5
    assert second.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\xff\xff", "not a ForwardBackwardOutput"),
        (record(data=b"123", offsets=int64(0, 3), dtype=1), "has 3 bytes"),
        (record(data=b"1234", offsets=int64(0, 4), dtype=9), "dtype: is 9"),
        (record(data=b"1234", offsets=b"123", dtype=1), "offsets"),
        (record(data=b"1234", offsets=int64(0, 8), dtype=1), "offsets: must rise"),
        (record(data=b"1234", offsets=int64(4, 0), dtype=1), "offsets: must rise"),
        (record(data=b"1234", offsets=int64(0, 3), dtype=1), "offsets: must rise"),
        (record(data=b"1234", offsets=int64(0, 4), dtype=1, trailing_shape=[2]), "rows of"),
        (record(data=b"1234", offsets=int64(0, 4), dtype=1, trailing_shape=[-1]), "negative"),
        (record(data=b"1234", offsets=int64(0, 4), dtype=1, num_datums=2), "covers 1 datums of 2"),
        (record(offsets=int64(0, 0), dtype=1, trailing_shape=[0, 2**62]), "trailing_shape: .* too"),
        (
            record(data=b"1234", offsets=int64(0, 4), dtype=1, trailing_shape=[1] * 70),
            "trailing_shape: .* dimension",
        ),
        (bare(-1), "num_datums"),
        (bare(2**40), "num_datums"),
    ],
)
def test_damaged_results_are_named(body: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        decode_forward_backward_output(body)


def test_metrics_without_a_rule_are_not_sent() -> None:
    with pytest.raises(WireError, match=r"metrics\['loss'\]"):
        encode_forward_backward_output([], {"loss": 1.0})


def test_datums_with_different_outputs_are_not_sent() -> None:
    one, other = {"a": np.zeros(1, np.float32)}, {"b": np.zeros(1, np.float32)}
    with pytest.raises(WireError, match=r"outputs\[1\]: must have the names"):
        encode_forward_backward_output([one, other], {})
