"""A forward/backward request means the same to us and to the official package."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.batches import build_datum, configs, datums, names
from tinkex import types
from tinkex.types import Datum, ImageAssetPointerChunk, ModelInput
from tinkex.types.csr import Csr
from tinkex.wire.protobuf import (
    WireError,
    decode_forward_backward,
    encode_forward_backward,
)

official = pytest.importorskip("tinker.types")
official_pb = pytest.importorskip("tinker.proto.tinker_public_pb2")
request_conv = pytest.importorskip("tinker.proto.request_conv")

VECTOR = bytes.fromhex(
    "0a0a73313a747261696e3a3010011a640a100a0e0a0c0b0000000c0000000d00000012300a0d7461726765745f746f"
    "6b656e73121f0a180c000000000000000d000000000000000e000000000000001802220103121e0a0777656967687473"
    "12130a0c000000000000803f0000803f1801220103220d63726f73735f656e74726f7079"
)


def small() -> Datum:
    inputs = {"target_tokens": [12, 13, 14], "weights": [0, 1, 1]}
    return Datum(ModelInput.from_ints([11, 12, 13]), inputs)


def test_the_published_vector_is_written_and_read() -> None:
    assert encode_forward_backward("s1:train:0", 1, [small()], "cross_entropy") == VECTOR
    call = decode_forward_backward(VECTOR)
    assert (call.model_id, call.seq_id, call.loss_fn) == ("s1:train:0", 1, "cross_entropy")
    assert call.data[0].tokens.tolist() == [11, 12, 13]
    assert call.data[0].inputs["weights"].tolist() == [0.0, 1.0, 1.0]
    assert not call.forward_only


requests = st.tuples(
    names, st.integers(1, 2**31 - 1), st.lists(datums, max_size=3), names, configs, st.booleans()
)


@given(requests)
def test_the_official_package_reads_what_we_write(request: tuple[Any, ...]) -> None:
    model_id, seq_id, data, loss_fn, config, forward_only = request
    body = encode_forward_backward(
        model_id, seq_id, [build_datum(types, d) for d in data], loss_fn, config, forward_only
    )
    read = official_pb.ForwardBackwardRequest.FromString(body)
    content = official.ForwardBackwardInput(
        [build_datum(official, d) for d in data], loss_fn, config
    )
    wanted = request_conv.forward_backward_request_to_proto(
        official.ForwardBackwardRequest(content, model_id, seq_id)
    )
    wanted.forward_only = forward_only
    assert read == wanted


@given(requests)
def test_we_read_what_the_official_package_writes(request: tuple[Any, ...]) -> None:
    model_id, seq_id, data, loss_fn, config, forward_only = request
    content = official.ForwardBackwardInput(
        [build_datum(official, d) for d in data], loss_fn, config
    )
    message = request_conv.forward_backward_request_to_proto(
        official.ForwardBackwardRequest(content, model_id, seq_id)
    )
    message.forward_only = forward_only
    body = message.SerializeToString()
    call = decode_forward_backward(body)
    assert (call.model_id, call.seq_id, call.loss_fn) == (model_id, seq_id, loss_fn)
    assert call.forward_only == forward_only
    assert call.loss_fn_config == config
    for found, description in zip(call.data, data, strict=True):
        assert_same(found, build_datum(types, description))


def assert_same(found: Any, wanted: Datum) -> None:
    for got, chunk in zip(found.chunks, wanted.model_input.chunks, strict=True):
        if isinstance(got, np.ndarray):
            assert got.dtype == np.int32
            assert got.tolist() == list(chunk.tokens)
        else:
            assert got == chunk
    assert found.inputs.keys() == wanted.loss_fn_inputs.keys()
    for name, tensor in wanted.loss_fn_inputs.items():
        got = found.inputs[name]
        if isinstance(got, Csr):
            assert tensor.csr is not None
            assert got.crow.tolist() == tensor.sparse_crow_indices
            assert got.col.tolist() == tensor.sparse_col_indices
            assert got.values.tolist() == tensor.data
        else:
            assert np.array_equal(got, tensor.to_numpy())
    assert found.model_input_spans == (wanted.model_input_spans or [])
    assert found.loss_fn_input_spans == (wanted.loss_fn_input_spans or [])


def test_decoded_arrays_are_read_only_views_on_the_body() -> None:
    body = encode_forward_backward("m", 1, [small()], "cross_entropy")
    array = decode_forward_backward(body).data[0].tokens
    assert array.base is not None
    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(body, dtype=np.uint8))


def test_an_image_pointer_cannot_be_trained_on() -> None:
    pointer = ModelInput(chunks=[ImageAssetPointerChunk(format="png", location="x")])
    with pytest.raises(WireError, match=r"data\[1\]\.model_input\.chunks\[0\].*send the image"):
        encode_forward_backward("m", 1, [small(), Datum(pointer)], "cross_entropy")


@pytest.mark.parametrize(
    ("seq_id", "config", "field"),
    [
        (0, {}, "seq_id"),
        (2**31, {}, "seq_id"),
        (1, {"beta": float("nan")}, r"loss_fn_config\['beta'\]"),
        (1, {"beta": [1]}, r"loss_fn_config\['beta'\]"),
    ],
)
def test_what_cannot_be_sent_is_named(seq_id: int, config: dict[str, Any], field: str) -> None:
    with pytest.raises(WireError, match=field):
        encode_forward_backward("m", seq_id, [small()], "cross_entropy", config)


def message(**fields: Any) -> Any:
    made = official_pb.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="cross_entropy")
    datum = made.data.add()
    datum.model_input.add().encoded_text.tokens = np.array([1], "<i4").tobytes()
    tensor = datum.loss_fn_inputs["weights"]
    tensor.CopyFrom(official_pb.Tensor(**fields))
    return made


FLOAT = {"dtype": 1}


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        ({"dense": b"123", **FLOAT}, r"data\[0\]\.loss_fn_inputs\['weights'\]\.dense: has 3 bytes"),
        ({"dense": b"1234", "dtype": 0}, "dtype: must be float32"),
        ({"dense": b"1234", "dtype": 4}, "dtype: must be float32"),
        ({"dense": b"1234", "shape": [2], **FLOAT}, r"shape: \[2\] does not fit 1 values"),
        ({"dense": b"1234", "shape": [-1], **FLOAT}, "negative"),
        ({"sparse_csr": {"values": b"1234"}, "shape": [2, 2], **FLOAT}, "sparse_csr"),
        ({"sparse_csr": {}, "shape": [2], **FLOAT}, "2-D shape"),
        ({"sparse_csr": {}, "shape": [-1, 3], **FLOAT}, "negative"),
        ({"dense": b"", "shape": [0, 2**62, 2**62], **FLOAT}, "shape: .* too"),
        ({"dense": b"1234", "shape": [1] * 70, **FLOAT}, "shape: .* dimension"),
    ],
)
def test_bad_tensors_are_refused_by_place(tensor: dict[str, Any], says: str) -> None:
    with pytest.raises(WireError, match=says):
        decode_forward_backward(message(**tensor).SerializeToString())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_id": ""}, "model_id: is missing"),
        ({"seq_id": 0}, "seq_id: must lie in"),
        ({"seq_id": -4}, "seq_id: must lie in"),
        ({"loss_fn": ""}, "loss_fn: is missing"),
    ],
)
def test_a_damaged_header_is_named(change: dict[str, Any], says: str) -> None:
    made = message(dense=b"1234", **FLOAT)
    for name, value in change.items():
        setattr(made, name, value)
    with pytest.raises(WireError, match=says):
        decode_forward_backward(made.SerializeToString())


def test_negative_tokens_and_bad_images_are_refused() -> None:
    made = message(dense=b"1234", **FLOAT)
    made.data[0].model_input[0].encoded_text.tokens = np.array([1, -7], "<i4").tobytes()
    with pytest.raises(WireError, match=r"chunks\[0\]\.tokens: holds a negative id at position 1"):
        decode_forward_backward(made.SerializeToString())
    made.data[0].model_input[0].image.format = "gif"
    with pytest.raises(WireError, match=r"chunks\[0\]\.format"):
        decode_forward_backward(made.SerializeToString())
    made.data[0].model_input[0].Clear()
    with pytest.raises(WireError, match=r"chunks\[0\]: is empty"):
        decode_forward_backward(made.SerializeToString())


@given(st.integers(0, len(VECTOR) - 1))
def test_a_cut_body_is_refused_or_misses_a_field(length: int) -> None:
    with pytest.raises(WireError):
        decode_forward_backward(VECTOR[:length])


@given(st.binary(max_size=200))
def test_noise_is_refused_with_a_wire_error_or_read(noise: bytes) -> None:
    with contextlib.suppress(WireError):
        decode_forward_backward(noise)


@given(st.integers(0, len(VECTOR) - 1), st.integers(0, 255))
def test_one_changed_byte_never_escapes_as_another_error(position: int, value: int) -> None:
    body = bytearray(VECTOR)
    body[position] = value
    try:
        decode_forward_backward(bytes(body))
    except WireError:
        return


def test_text_only_tokens_are_joined_and_images_named() -> None:
    both = ModelInput.from_ints([1]).append_int(2)
    body = encode_forward_backward("m", 1, [Datum(both)], "cross_entropy")
    assert decode_forward_backward(body).data[0].tokens.tolist() == [1, 2]
    image = ModelInput(chunks=[types.ImageChunk(data=b"", format="png")])
    body = encode_forward_backward("m", 1, [Datum(image)], "cross_entropy")
    with pytest.raises(WireError, match=r"chunks\[0\]: is of type .image.: .* read text only"):
        _ = decode_forward_backward(body).data[0].tokens
