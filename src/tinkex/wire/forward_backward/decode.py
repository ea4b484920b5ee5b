"""Reading a forward/backward request without copying its arrays.

Every length, dtype, shape and index is checked here, so that nothing behind this door has to.
WireError names the place: `data[3].loss_fn_inputs['weights'].shape`.
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinkex.types.csr import Csr, check_csr
from tinkex.types.model_input import DmelChunk, ImageChunk
from tinkex.types.provenance import PromptProvenanceSpan, SampledProvenanceSpan
from tinkex.wire.calls import ForwardBackwardCall, WireDatum, WireTensor
from tinkex.wire.errors import WireError
from tinkex.wire.framing import (
    FIXED64,
    LENGTH,
    VARINT,
    Buffer,
    Message,
    expect,
    read_varint,
    signed,
)
from tinkex.wire.limits import MAX_DATUMS_PER_REQUEST

_DTYPES: dict[int, Any] = {1: np.dtype("<f4"), 2: np.dtype("<i8")}
_TOKEN = np.dtype("<i4")
_MOST_DIMENSIONS = 64  # of an array of numpy's
_NO_TOKENS: NDArray[np.int32] = np.zeros(0, dtype=np.int32)


def decode_forward_backward(body: Buffer) -> ForwardBackwardCall:
    """The whole request, checked; its arrays are views on `body`."""
    message = Message(body)
    texts = {1: "", 4: ""}
    varints = {2: 0, 6: 0}
    data: list[WireDatum] = []
    config: dict[int, dict[str, float | str]] = {5: {}, 7: {}}
    for number, kind, start, end in message.fields(0, len(body)):
        if number == 3:
            expect(kind, LENGTH, "data")
            data.append(_datum(message, start, end, len(data)))
        elif number in texts:
            expect(kind, LENGTH, _NAMES[number])
            texts[number] = message.text(start, end, _NAMES[number])
        elif number in varints:
            expect(kind, VARINT, _NAMES[number])
            varints[number] = signed(start)
        elif number in config:
            expect(kind, LENGTH, "loss_fn_config")
            key, value = _config_entry(message, start, end, number)
            config[number][key] = value
            if len(config[number]) > _MOST_SETTINGS:
                raise WireError("loss_fn_config", f"has more than {_MOST_SETTINGS} entries")
    _check_header(texts[1], varints[2])
    _check_loss(texts[4])
    merged = {**config[5], **config[7]}
    return ForwardBackwardCall(texts[1], varints[2], data, texts[4], merged, bool(varints[6]))


_MOST_SETTINGS = 1024
_NAMES = {1: "model_id", 2: "seq_id", 4: "loss_fn", 6: "forward_only"}


def _check_header(model_id: str, seq_id: int) -> None:
    if not model_id:
        raise WireError("model_id", "is missing")
    if not 0 < seq_id < 2**31:
        raise WireError("seq_id", f"must lie in 1..{2**31 - 1}, got {seq_id}")


def _check_loss(loss_fn: str) -> None:
    if not loss_fn:
        raise WireError("loss_fn", "is missing")


def _datum(body: Message, start: int, end: int, index: int) -> WireDatum:
    if index >= MAX_DATUMS_PER_REQUEST:
        raise WireError("data", f"holds more than {MAX_DATUMS_PER_REQUEST} datums")
    try:
        return _datum_fields(body, start, end)
    except WireError as error:
        raise error.inside(f"data[{index}]") from None


def _datum_fields(body: Message, start: int, end: int) -> WireDatum:
    chunks: list[Any] = []
    inputs: dict[str, WireTensor] = {}
    spans: dict[int, list[Any]] = {3: [], 4: []}
    for number, kind, a, b in body.fields(start, end):
        if number == 1:
            expect(kind, LENGTH, "model_input")
            chunks.append(_chunk(body, a, b, f"model_input.chunks[{len(chunks)}]"))
        elif number == 2:
            expect(kind, LENGTH, "loss_fn_inputs")
            name, tensor = _input_entry(body, a, b)
            inputs[name] = tensor
        elif number in spans:
            expect(kind, LENGTH, _SPAN_NAMES[number])
            place = f"{_SPAN_NAMES[number]}[{len(spans[number])}]"
            body.take(_SPAN)
            spans[number].append(_span(body, a, b, place))
    return WireDatum(tuple(chunks), inputs, spans[3], spans[4])


_SPAN = 8  # a span becomes an object, which takes as much as so many fields
_SPAN_NAMES = {3: "model_input_spans", 4: "loss_fn_input_spans"}


def _chunk(body: Message, start: int, end: int, place: str) -> Any:
    chunk = None
    for number, kind, a, b in body.fields(start, end):
        if number in _CHUNKS:
            expect(kind, LENGTH, place)
            chunk = _CHUNKS[number](body, a, b, place)
    if chunk is None:
        raise WireError(place, "is empty: expected text, an image or audio")
    return chunk


def _text_chunk(body: Message, start: int, end: int, place: str) -> NDArray[np.int32]:
    tokens = _NO_TOKENS
    place = f"{place}.tokens"
    for number, kind, a, b in body.fields(start, end):
        if number == 1:
            expect(kind, LENGTH, place)
            tokens = _array(body, a, b, _TOKEN, place)
    if len(tokens) and int(tokens.min()) < 0:
        position = int(np.argmax(tokens < 0))
        raise WireError(place, f"holds a negative id at position {position}")
    return tokens


def _image_chunk(body: Message, start: int, end: int, place: str) -> ImageChunk:
    data, form, expected = b"", "", None
    for number, kind, a, b in body.fields(start, end):
        if number == 1:
            expect(kind, LENGTH, f"{place}.data")
            data = bytes(body.data[a:b])
        elif number == 2:
            expect(kind, LENGTH, f"{place}.format")
            form = body.text(a, b, f"{place}.format")
        elif number == 3:
            expect(kind, VARINT, f"{place}.expected_tokens")
            expected = signed(a)
    if form not in ("png", "jpeg"):
        raise WireError(f"{place}.format", "must be png or jpeg")
    return ImageChunk(data=data, format=form, expected_tokens=expected)  # type: ignore[arg-type]  # one of the two literals


def _dmel_chunk(body: Message, start: int, end: int, place: str) -> DmelChunk:
    dmel = b""
    for number, kind, a, b in body.fields(start, end):
        if number == 1:
            expect(kind, LENGTH, f"{place}.dmel")
            dmel = bytes(body.data[a:b])
    return DmelChunk(dmel=dmel)


_CHUNKS = {1: _text_chunk, 2: _image_chunk, 3: _dmel_chunk}


def _input_entry(body: Message, start: int, end: int) -> tuple[str, WireTensor]:
    name, value = "", (start, start)
    for number, kind, a, b in body.fields(start, end):
        if number == 1:
            expect(kind, LENGTH, "loss_fn_inputs")
            name = body.text(a, b, "loss_fn_inputs")
        elif number == 2:
            expect(kind, LENGTH, "loss_fn_inputs")
            value = (a, b)
    try:
        return name, _tensor(body, *value)
    except WireError as error:
        raise error.inside(f"loss_fn_inputs[{name!r}]") from None


def _tensor(body: Message, start: int, end: int) -> WireTensor:
    dense: tuple[int, int] | None = None
    sparse: tuple[int, int] | None = None
    dtype, shape = 0, []
    for number, kind, a, b in body.fields(start, end):
        if number == 1:
            expect(kind, LENGTH, "dense")
            dense, sparse = (a, b), None
        elif number == 2:
            expect(kind, LENGTH, "sparse_csr")
            dense, sparse = None, (a, b)
        elif number == 3:
            expect(kind, VARINT, "dtype")
            dtype = a
        elif number == 4:
            shape += _sizes(body, kind, a, b)
            if len(shape) > _MOST_DIMENSIONS:
                raise WireError("shape", f"has more than {_MOST_DIMENSIONS} dimensions")
    if dtype not in _DTYPES:
        raise WireError("dtype", f"must be float32 (1) or int64 (2), got {dtype}")
    if sparse is not None:
        return _sparse(body, *sparse, _DTYPES[dtype], shape)
    return _dense(body, *(dense or (start, start)), _DTYPES[dtype], shape)


def _sizes(body: Message, kind: int, start: int, end: int) -> list[int]:
    """Shape entries, packed as writers do or one by one as the format allows."""
    if kind == VARINT:
        return [signed(start)]
    expect(kind, LENGTH, "shape")
    sizes: list[int] = []
    while start < end and len(sizes) <= _MOST_DIMENSIONS:
        size, start = read_varint(body.data, start, end)
        sizes.append(signed(size))
    return sizes


def _dense(body: Message, start: int, end: int, dtype: Any, shape: list[int]) -> NDArray[Any]:
    values = _array(body, start, end, dtype, "dense")
    if not shape or shape == [len(values)]:
        return values
    _check_shape(shape, len(values))
    try:
        return values.reshape(shape)
    except ValueError as error:  # of no values in too many, or too large, dimensions
        raise WireError("shape", f"is not possible: {error}") from None


def _check_shape(shape: list[int], size: int) -> None:
    total = 1
    for length in shape:
        if length < 0:
            raise WireError("shape", f"must have no negative sizes, got {shape}")
        total *= length
    if total != size:
        raise WireError("shape", f"{shape} does not fit {size} values")


def _sparse(body: Message, start: int, end: int, dtype: Any, shape: list[int]) -> Csr:
    wanted = {1: ("values", dtype), 2: ("crow_indices", "<i8"), 3: ("col_indices", "<i8")}
    arrays = {number: np.zeros(0, dtype=kind) for number, (_, kind) in wanted.items()}
    for number, kind, a, b in body.fields(start, end):
        if number in wanted:
            name, element = wanted[number]
            expect(kind, LENGTH, f"sparse_csr.{name}")
            arrays[number] = _array(body, a, b, np.dtype(element), f"sparse_csr.{name}")
    try:
        check_csr(arrays[1], arrays[2], arrays[3], shape)
    except ValueError as error:
        raise WireError("sparse_csr", str(error)) from None
    return Csr(arrays[1], arrays[2], arrays[3], (shape[0], shape[1]))


def _array(body: Message, start: int, end: int, dtype: Any, name: str) -> NDArray[Any]:
    size = end - start
    if size % dtype.itemsize:
        raise WireError(name, f"has {size} bytes, not a multiple of {dtype.itemsize}")
    if not size:
        return np.zeros(0, dtype=dtype)
    array = np.frombuffer(body.data, dtype=dtype, count=size // dtype.itemsize, offset=start)
    if not isinstance(body.data, bytes):  # whose views are read-only anyhow
        array.flags.writeable = False
    return array


def _span(body: Message, start: int, end: int, place: str) -> Any:
    span = None
    for number, kind, a, b in body.fields(start, end):
        if number in (1, 2):
            expect(kind, LENGTH, place)
            span = _span_fields(body, a, b, number, place)
    if span is None:
        raise WireError(place, "is empty: expected prompt_tokens or sampled_tokens")
    return span


def _span_fields(body: Message, start: int, end: int, which: int, place: str) -> Any:
    sequence_id, numbers = "", {2: 0, 3: 0}
    for number, kind, a, b in body.fields(start, end):
        if number == 1:
            expect(kind, LENGTH, f"{place}.sequence_id")
            sequence_id = body.text(a, b, f"{place}.sequence_id")
        elif number in numbers:
            expect(kind, VARINT, place)
            numbers[number] = signed(a)
    make = PromptProvenanceSpan if which == 1 else SampledProvenanceSpan
    try:
        return make(sequence_id=sequence_id, offset=numbers[2], length=numbers[3])
    except ValueError as error:
        raise WireError(place, str(error)) from None


def _config_entry(body: Message, start: int, end: int, which: int) -> tuple[str, float | str]:
    key = ""
    value: float | str = 0.0
    for number, kind, a, b in body.fields(start, end):
        if number == 1:
            expect(kind, LENGTH, "loss_fn_config")
            key = body.text(a, b, "loss_fn_config")
        elif number == 2 and which == 5:
            expect(kind, FIXED64, f"loss_fn_config[{key!r}]")
            value = _double(body, a)
        elif number == 2:
            expect(kind, LENGTH, f"loss_fn_config[{key!r}]")
            value = _config_value(body, a, b, f"loss_fn_config[{key!r}]")
    return key, value


def _config_value(body: Message, start: int, end: int, place: str) -> float | str:
    value: float | str = 0.0
    for number, kind, a, b in body.fields(start, end):
        if number == 1:
            expect(kind, FIXED64, place)
            value = _double(body, a)
        elif number == 2:
            expect(kind, LENGTH, place)
            value = body.text(a, b, place)
    return value


def _double(body: Message, start: int) -> float:
    value: float = struct.unpack_from("<d", body.data, start)[0]
    return value
