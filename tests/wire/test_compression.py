"""zstd bodies cannot fill the memory, whatever they claim."""

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tinkex.wire.compression import compress, decompress
from tinkex.wire.errors import WireError

LIMIT = 1 << 16


@given(st.binary(max_size=1000))
def test_what_is_compressed_comes_back(body: bytes) -> None:
    packed = compress(body)
    assert zstandard.get_frame_parameters(packed).content_size == len(body)
    assert decompress(packed, LIMIT) == body


def test_a_claimed_size_over_the_limit_is_refused_before_reading() -> None:
    with pytest.raises(WireError, match="decompresses to 65537 bytes; the limit is 65536"):
        decompress(compress(bytes(LIMIT + 1)), LIMIT)


def test_a_bomb_that_does_not_state_its_size_is_refused() -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(50_000_000))
    assert len(bomb) < 10_000
    with pytest.raises(WireError, match="does not state its size"):
        decompress(bomb, LIMIT)


def test_a_frame_that_claims_less_than_it_holds_is_refused() -> None:
    liar = bytearray(compress(bytes(1000)))
    stated = (1000 - 256).to_bytes(2, "little")
    position = liar.index(stated)
    liar[position : position + 2] = (100).to_bytes(2, "little")
    assert zstandard.get_frame_parameters(bytes(liar)).content_size == 356
    with pytest.raises(WireError, match=r"claims 356 bytes|not valid zstd"):
        decompress(bytes(liar), LIMIT)


@pytest.mark.parametrize("cut", [1, 3, 8, 20])
def test_truncated_bodies_are_refused(cut: int) -> None:
    packed = compress(bytes(range(256)) * 4)
    with pytest.raises(WireError):
        decompress(packed[:-cut], LIMIT)


@given(st.binary(max_size=100))
def test_noise_is_refused(noise: bytes) -> None:
    try:
        decompress(noise, LIMIT)
    except WireError:
        return
