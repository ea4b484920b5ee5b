"""The result of a forward/backward: ragged arrays over datums, packed end to end.

Datums whose outputs have the same names, dtypes and trailing sizes share a record. Reading splits a
record with one copy per field and no Python list of numbers; writing joins the arrays once.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import prod
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from tinkex.types.datum import ForwardBackwardOutput
from tinkex.types.tensor_data import TensorData
from tinkex.wire import schema_pb2 as pb
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
from tinkex.wire.limits import MAX_DATUMS_PER_REQUEST
from tinkex.wire.tensors import dtype_number, element_bytes, stored, values_from_bytes

OUTPUT_TYPE = "ArrayRecord"

_Outputs = Mapping[str, NDArray[Any]]


def encode_forward_backward_output(
    outputs: Sequence[_Outputs],
    metrics: Mapping[str, float],
    output_type: str = OUTPUT_TYPE,
) -> bytes:
    """The body of a result: one mapping of arrays per datum, and metrics named `name:rule`."""
    for key in metrics:
        if key.count(":") != 1:
            raise WireError(f"metrics[{key!r}]", "must be named name:rule, with one colon")
    for index, datum in enumerate(outputs):
        if datum.keys() != outputs[0].keys():
            raise WireError(f"outputs[{index}]", "must have the names of outputs[0]")
    pieces: Pieces = [text_field(1, output_type)]
    for _, group in groupby(outputs, key=_layout):
        _add_record(pieces, list(group))
    for key, value in metrics.items():
        entry = text_field(1, key) + tag(2, FIXED64) + struct.pack("<d", value)
        pieces += (length_field(3, len(entry)), entry)
    return b"".join(pieces)


def _layout(datum: _Outputs) -> list[tuple[str, str, tuple[int, ...]]]:
    """What datums of one record have in common."""
    return sorted((name, array.dtype.kind, array.shape[1:]) for name, array in datum.items())


def _add_record(pieces: Pieces, datums: list[_Outputs]) -> None:
    start, size = len(pieces), 0
    pieces.append(b"")
    for name in datums[0]:
        size += _add_field(pieces, name, [np.atleast_1d(datum[name]) for datum in datums])
    count = varint_field(3, len(datums))
    pieces.append(count)
    pieces[start] = length_field(2, size + len(count))


def _add_field(pieces: Pieces, name: str, arrays: list[NDArray[Any]]) -> int:
    """One entry of the map, arrays end to end; returns its size."""
    dtype = dtype_number(arrays[0])
    values = [stored(array, dtype) for array in arrays]
    ends = np.cumsum([0, *(array.nbytes for array in values)], dtype="<i8")
    data = length_field(1, int(ends[-1]))
    tail = length_field(2, ends.nbytes) + ends.tobytes() + varint_field(3, dtype)
    tail += packed_field(4, arrays[0].shape[1:])
    size = len(data) + int(ends[-1]) + len(tail)
    head = text_field(1, name) + length_field(2, size)
    outer = length_field(2, len(head) + size)
    pieces += (outer, head, data, *values, tail)
    return len(outer) + len(head) + size


def decode_forward_backward_output(body: bytes) -> ForwardBackwardOutput:
    """The values of a result body; WireError when it is damaged."""
    try:
        message = pb.ForwardBackwardOutput.FromString(body)
    except DecodeError as error:
        raise WireError("body", f"is not a ForwardBackwardOutput: {error}") from error
    outputs: list[dict[str, TensorData]] = []
    for index, record in enumerate(message.loss_fn_outputs):
        room = MAX_DATUMS_PER_REQUEST - len(outputs)
        outputs.extend(_datums(record, f"loss_fn_outputs[{index}]", room))
    kind = message.loss_fn_output_type.rpartition(":")[2]
    return ForwardBackwardOutput(kind, outputs, dict(message.metrics))


def _datums(record: Any, place: str, room: int) -> list[dict[str, TensorData]]:
    columns = {
        name: list(_split(field, f"{place}.fields[{name!r}]"))
        for name, field in record.fields.items()
    }
    count = record.num_datums or len(next(iter(columns.values()), []))
    for name, column in columns.items():
        if len(column) != count:
            problem = f"covers {len(column)} datums of {count}"
            raise WireError(f"{place}.fields[{name!r}]", problem)
    if not 0 <= count <= room:
        raise WireError(f"{place}.num_datums", f"is {count}; there is room for 0 to {room}")
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def _split(field: Any, place: str) -> Iterator[TensorData]:
    values = values_from_bytes(field.data, field.dtype, place)
    trailing = list(field.trailing_shape)
    bounds = _element_bounds(field, len(values), place)
    row = prod(trailing)
    if any(size < 0 for size in trailing):
        raise WireError(f"{place}.trailing_shape", f"has negative sizes: {trailing}")
    for start, end in pairwise(bounds):
        part = values[start:end]
        if (not row and len(part)) or (row and len(part) % row):
            raise WireError(place, f"has {len(part)} values, not rows of {trailing}")
        yield TensorData.from_numpy(_rows(part, len(part) // row if row else 0, trailing, place))


def _rows(part: NDArray[Any], count: int, trailing: list[int], place: str) -> NDArray[Any]:
    try:
        return part.reshape(count, *trailing)
    except ValueError as error:  # of no values in too many, or too large, dimensions
        raise WireError(f"{place}.trailing_shape", f"is not possible: {error}") from None


def _element_bounds(field: Any, count: int, place: str) -> list[int]:
    """Offsets in elements, checked: they count bytes on the wire."""
    if len(field.offsets) % 8:
        raise WireError(f"{place}.offsets", "is not a whole number of int64")
    offsets = np.frombuffer(field.offsets, dtype="<i8")
    width = element_bytes(field.dtype, place)
    rising = len(offsets) == 0 or (offsets[0] >= 0 and bool((np.diff(offsets) >= 0).all()))
    if not rising or (len(offsets) and offsets[-1] > count * width) or (offsets % width).any():
        raise WireError(f"{place}.offsets", f"must rise within {count * width} bytes")
    bounds: list[int] = (offsets // width).tolist()
    return bounds
