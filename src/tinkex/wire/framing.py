"""Protobuf's wire format by hand: varints, tags and lengths around buffers that are not copied.

Messages that carry megabytes are written as a list of pieces, joined once, and read as positions in
the body. Everything smaller uses the generated classes. Knows no message.

Our own because 128 sequences of 2,048 tokens are written in 4.0 ms where the generated classes take
15.2, with a third of the memory (`benchmarks/encoding.py`).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

from tinkex.wire.errors import WireError

Buffer: TypeAlias = bytes | bytearray | memoryview
Pieces: TypeAlias = list[Any]
"""bytes and contiguous numpy arrays, in the order they travel."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

_MAX_VARINT_BYTES = 10
_SIGN = 1 << 63
_WRAP = 1 << 64


def varint(value: int) -> bytes:
    """An unsigned varint; a negative number travels as its 64-bit complement."""
    if value < 0:
        value += _WRAP
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


@lru_cache(maxsize=1024)  # a batch repeats a handful of sizes and names, datum after datum
def length_field(number: int, size: int) -> bytes:
    """What stands before `size` bytes of field `number`."""
    return varint(number << 3 | LENGTH) + varint(size)


@lru_cache(maxsize=1024)
def text_field(number: int, text: str) -> bytes:
    data = text.encode()
    return length_field(number, len(data)) + data


def varint_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def packed_field(number: int, values: Sequence[int]) -> bytes:
    """Several numbers in one field; nothing if there are none."""
    body = b"".join(map(varint, values))
    return length_field(number, len(body)) + body if body else b""


Field: TypeAlias = tuple[int, int, int, int]
"""(number, kind, a, b): for a varint `a` is its value, for the rest data[a:b] is the content."""


def fields(data: Buffer, position: int, end: int) -> Iterator[Field]:
    """The fields of the message in data[position:end], unknown ones included."""
    while position < end:
        key, position = data[position], position + 1
        if key >= 0x80:
            key, position = read_varint(data, position - 1, end)
        number, kind = key >> 3, key & 7
        if not number:
            raise WireError("", "has a field number 0; the message is damaged")
        if kind == LENGTH:
            size, position = read_varint(data, position, end)
        elif kind == VARINT:
            value, position = read_varint(data, position, end)
            yield number, kind, value, position
            continue
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise WireError("", f"field {number} has unknown wire type {kind}")
        start, position = position, position + size
        if position > end:
            raise WireError("", f"field {number} is cut short by {position - end} bytes")
        yield number, kind, start, position


MOST_FIELDS = 2 * 2**20
"""Of a message and of all within it: 65,536 datums have 32 each."""
MOST_TEXT_BYTES = 4096
"""Of a name or a setting."""


class Message:
    """A stranger's message and how many fields may still be read of it.

    Two bytes are a field, and a few hundred bytes of zstd are millions of them: what bounds the
    time that reading takes, and the memory, is their number and not the size.
    """

    __slots__ = ("_left", "_most", "data")

    def __init__(self, data: Buffer, most: int = MOST_FIELDS) -> None:
        self.data = data
        self._most = self._left = most

    def fields(self, position: int, end: int) -> Iterator[Field]:
        """As the function does it, counted."""
        for field in fields(self.data, position, end):
            self._left -= 1
            if self._left < 0:
                self._refuse()
            yield field

    def take(self, count: int) -> None:
        """Count something that takes as much as so many fields."""
        self._left -= count
        if self._left < 0:
            self._refuse()

    def text(self, start: int, end: int, name: str) -> str:
        if end - start > MOST_TEXT_BYTES:
            problem = f"is a text of {end - start} bytes; the limit is {MOST_TEXT_BYTES}"
            raise WireError(name, problem)
        return read_text(self.data, start, end, name)

    def _refuse(self) -> NoReturn:
        raise WireError(
            "", f"has more than {self._most} fields, the limit: send fewer datums at once"
        )


def read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """(value, next position). Short ones, which nearly all are, without a loop."""
    if position < end and (first := data[position]) < 0x80:
        return first, position + 1
    if position + 3 <= end:
        first, second, third = data[position : position + 3]
        if second < 0x80:
            return first & 0x7F | second << 7, position + 2
        if third < 0x80:
            return first & 0x7F | (second & 0x7F) << 7 | third << 14, position + 3
    return _read_long_varint(data, position, end)


def _read_long_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(position, min(end, position + _MAX_VARINT_BYTES)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (_WRAP - 1), index + 1
        shift += 7
    if end - position < _MAX_VARINT_BYTES:
        raise WireError("", "ends inside a number; the message is cut short")
    raise WireError("", "holds a number longer than 64 bits")


def signed(value: int) -> int:
    """The int64 meaning of a varint."""
    return value - _WRAP if value & _SIGN else value


def expect(kind: int, wanted: int, name: str) -> None:
    if kind != wanted:
        raise WireError(name, f"has wire type {kind}, expected {wanted}")


def read_text(data: Buffer, start: int, end: int, name: str) -> str:
    try:
        return bytes(data[start:end]).decode()
    except UnicodeDecodeError as error:
        raise WireError(name, "is not UTF-8") from error
