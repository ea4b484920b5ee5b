"""A request of few bytes that would take long to read, or much memory, is refused as it is read.

Compressed, each of these bodies is a few hundred bytes.
"""

import struct
from collections.abc import Callable

import pytest

from tinkex.server.protocol.forward_codec import examine
from tinkex.server.refusals import Refusal
from tinkex.wire.framing import (
    FIXED64,
    MOST_FIELDS,
    MOST_TEXT_BYTES,
    length_field,
    tag,
    varint,
    varint_field,
)
from tinkex.wire.protobuf import WireError, decode_forward_backward


def part(number: int, content: bytes) -> bytes:
    return length_field(number, len(content)) + content


HEAD = part(1, b"s:train:0") + varint_field(2, 1) + part(4, b"cross_entropy")
TEXT = part(1, part(1, part(1, struct.pack("<2i", 1, 2))))
SPAN = part(3, part(1, part(1, b"a") + varint_field(2, 0) + varint_field(3, 1)))


def datum(content: bytes) -> bytes:
    return HEAD + part(3, TEXT + content)


def tensor(content: bytes, name: bytes = b"weights") -> bytes:
    return datum(part(2, part(1, name) + part(2, varint_field(3, 1) + content)))


MANY = {
    "fields nobody knows": lambda count: HEAD + b"\x50\x01" * count,
    "chunks": lambda count: datum(part(1, part(1, b"")) * (count // 2)),
    "spans": lambda count: datum(SPAN * (count // 8)),
}


@pytest.mark.parametrize("what", MANY)
def test_more_fields_than_a_large_batch_has_are_refused(what: str) -> None:
    with pytest.raises(WireError, match=f"more than {MOST_FIELDS} fields"):
        decode_forward_backward(MANY[what](MOST_FIELDS))


SMALL = {
    "a shape of very many sizes": tensor(part(4, b"\x01" * 100_000)),
    "a shape of very large sizes": tensor(part(4, varint(2**62 + 1) * 100_000)),
    "a shape of single sizes": tensor(varint_field(4, 1) * 1_000),
    "a long name": tensor(b"", name=b"w" * 10_000_000),
    "a long setting": HEAD + part(5, part(1, b"k" * 10_000_000) + tag(2, FIXED64) + b"\0" * 8),
    "a long loss": HEAD + part(4, b"k" * 10_000_000),
    "many settings": HEAD + b"".join(part(5, part(1, str(i).encode())) for i in range(2_000)),
}


@pytest.mark.parametrize("what", SMALL)
def test_what_is_refused_is_not_said_again_at_length(what: str) -> None:
    found = examine(SMALL[what]).content
    assert isinstance(found, Refusal)
    assert len(found.detail) < 300


def test_a_model_id_that_is_no_name_is_refused_by_its_size() -> None:
    body = part(1, b"s" * (MOST_TEXT_BYTES + 1)) + varint_field(2, 1)
    with pytest.raises(Refusal, match=f"the limit is {MOST_TEXT_BYTES}") as caught:
        examine(body)
    assert len(caught.value.detail) < 300


@pytest.mark.parametrize("make", MANY.values(), ids=MANY)
def test_a_tenth_of_it_is_read(make: Callable[[int], bytes]) -> None:
    assert decode_forward_backward(make(MOST_FIELDS // 10)).model_id == "s:train:0"
