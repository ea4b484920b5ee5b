"""Writing a forward/backward request: headers around the caller's own buffers, joined once.

No token and no weight passes through a Python number, and the only copy is the final join.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinkex.types.datum import Datum
from tinkex.types.model_input import DmelChunk, EncodedTextChunk, ImageChunk
from tinkex.types.provenance import ProvenanceSpans, SampledProvenanceSpan
from tinkex.types.tensor_data import TensorData
from tinkex.wire.errors import WireError
from tinkex.wire.framing import (
    FIXED64,
    Pieces,
    length_field,
    packed_field,
    tag,
    text_field,
    varint_field,
)
from tinkex.wire.limits import MAX_FWDBWD_SEQ_ID

_DTYPE_FIELD = {"float32": varint_field(3, 1), "int64": varint_field(3, 2)}


def encode_forward_backward(
    model_id: str,
    seq_id: int,
    data: Sequence[Datum],
    loss_fn: str,
    loss_fn_config: Mapping[str, float | str] | None = None,
    forward_only: bool = False,
) -> bytes:
    """The body of a `forward_backward` request. WireError names what cannot be sent."""
    if not 0 < seq_id <= MAX_FWDBWD_SEQ_ID:
        raise WireError("seq_id", f"must lie in 1..{MAX_FWDBWD_SEQ_ID}, got {seq_id}")
    pieces: Pieces = [text_field(1, model_id), varint_field(2, seq_id)]
    for index, datum in enumerate(data):
        _add_datum(pieces, datum, index)
    pieces.append(text_field(4, loss_fn))
    numbers, values = _config(loss_fn_config or {})
    pieces.append(numbers)
    if forward_only:
        pieces.append(varint_field(6, 1))
    pieces.append(values)
    return b"".join(pieces)


def _add_datum(pieces: Pieces, datum: Datum, index: int) -> None:
    start = len(pieces)
    pieces.append(b"")
    try:
        size = sum(_add_chunk(pieces, chunk, n) for n, chunk in enumerate(datum.model_input.chunks))
        for name, tensor in datum.loss_fn_inputs.items():
            size += _add_input(pieces, name, tensor)
    except WireError as error:
        raise error.inside(f"data[{index}]") from None
    for number, spans in ((3, datum.model_input_spans), (4, datum.loss_fn_input_spans)):
        written = _spans(number, spans or [])
        pieces.append(written)
        size += len(written)
    pieces[start] = length_field(3, size)


def _add_chunk(pieces: Pieces, chunk: Any, index: int) -> int:
    """Appends one chunk and returns its size; text is by far the most frequent."""
    if isinstance(chunk, EncodedTextChunk):
        ids = _contiguous(chunk.ids, np.int32)
        inner = length_field(1, ids.nbytes) if ids.nbytes else b""
        head = _nested((1, 1), len(inner) + ids.nbytes) + inner
        pieces += (head, ids)
        return len(head) + ids.nbytes
    if isinstance(chunk, ImageChunk):
        return _add_image(pieces, chunk)
    if isinstance(chunk, DmelChunk):
        inner = length_field(1, len(chunk.dmel))
        head = _nested((1, 3), len(inner) + len(chunk.dmel)) + inner
        pieces += (head, chunk.dmel)
        return len(head) + len(chunk.dmel)
    raise WireError(
        f"model_input.chunks[{index}]",
        f"is a {type(chunk).__name__}, which cannot be trained on; send the image itself",
    )


def _add_image(pieces: Pieces, chunk: ImageChunk) -> int:
    tail = text_field(2, chunk.format)
    if chunk.expected_tokens is not None:
        tail += varint_field(3, chunk.expected_tokens)
    inner = length_field(1, len(chunk.data))
    head = _nested((1, 2), len(inner) + len(chunk.data) + len(tail)) + inner
    pieces += (head, chunk.data, tail)
    return len(head) + len(chunk.data) + len(tail)


def _add_input(pieces: Pieces, name: str, tensor: TensorData) -> int:
    """One entry of the map: key 1 is the name, value 2 the tensor."""
    body: Pieces = []
    size = _add_dense(body, tensor) if tensor.csr is None else _add_sparse(body, tensor)
    tail = _DTYPE_FIELD[tensor.dtype] + packed_field(4, tensor.shape or [])
    size += len(tail)
    key = text_field(1, name)
    head = key + length_field(2, size)
    outer = length_field(2, len(head) + size)
    pieces.append(outer + head)
    pieces += body
    pieces.append(tail)
    return len(outer) + len(head) + size


def _add_dense(pieces: Pieces, tensor: TensorData) -> int:
    values = _contiguous(tensor.to_numpy(), tensor.dtype)
    head = length_field(1, values.nbytes)
    pieces += (head, values)
    return len(head) + values.nbytes


def _add_sparse(pieces: Pieces, tensor: TensorData) -> int:
    csr = tensor.csr
    assert csr is not None
    arrays = (
        _contiguous(csr.values, tensor.dtype),
        _contiguous(csr.crow, np.int64),
        _contiguous(csr.col, np.int64),
    )
    parts: Pieces = []
    for number, array in enumerate(arrays, start=1):
        if array.nbytes:
            parts += (length_field(number, array.nbytes), array)
    size = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)
    head = length_field(2, size)
    pieces.append(head)
    pieces += parts
    return len(head) + size


def _contiguous(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Little-endian and row-major; the same object where it already is, as nearly always."""
    return np.ascontiguousarray(array, dtype=np.dtype(dtype).newbyteorder("<"))


def _nested(numbers: tuple[int, int], size: int) -> bytes:
    """Heads of two messages around `size` bytes: a chunk, and the kind of chunk inside it."""
    inner = length_field(numbers[1], size)
    return length_field(numbers[0], len(inner) + size) + inner


def _spans(number: int, spans: ProvenanceSpans) -> bytes:
    out = bytearray()
    for span in spans:
        body = text_field(1, span.sequence_id)
        body += varint_field(2, span.offset) if span.offset else b""
        body += varint_field(3, span.length) if span.length else b""
        kind = 2 if isinstance(span, SampledProvenanceSpan) else 1
        out += _nested((number, kind), len(body)) + body
    return bytes(out)


def _config(config: Mapping[str, float | str]) -> tuple[bytes, bytes]:
    """Both maps: numbers go into the old one and the new one, texts into the new one only."""
    numbers, values = bytearray(), bytearray()
    for key, value in config.items():
        name = text_field(1, key)
        if isinstance(value, str):
            inner = text_field(1 + 1, value)
        else:
            number = _number(key, value)
            inner = tag(1, FIXED64) + number
            entry = name + tag(2, FIXED64) + number
            numbers += length_field(5, len(entry)) + entry
        entry = name + length_field(2, len(inner)) + inner
        values += length_field(7, len(entry)) + entry
    return bytes(numbers), bytes(values)


def _number(key: str, value: float) -> bytes:
    field = f"loss_fn_config[{key!r}]"
    if not isinstance(value, int | float | np.number):
        raise WireError(field, f"must be a number or a text, got {type(value).__name__}")
    if math.isnan(value):
        raise WireError(field, "must not be NaN")
    return struct.pack("<d", value)
