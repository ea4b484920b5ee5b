"""zstd bodies: one frame with its size in front, and decompression that cannot be talked into
filling the memory.
"""

import zstandard

from tinkex.wire.errors import WireError
from tinkex.wire.limits import MAX_REQUEST_BYTES

_LEVEL = 3
_FIELD = "body"
_PIECE = 1 << 20
_MAX_WINDOW = 8 << 20
"""The back-reference window a frame may ask for: what the format asks every decoder to support."""


def compress(body: bytes) -> bytes:
    """One frame that states its content size."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(body)


def decompress(body: bytes, limit: int = MAX_REQUEST_BYTES) -> bytes:
    """The content of one frame, at most `limit` bytes.

    The protocol's frames state their size: one that claims too much is refused before anything is
    allocated, one that holds more or less than it claims is refused where that shows.
    """
    claimed = claimed_size(body, limit)
    content = _read(body, claimed + 1)
    if len(content) != claimed:
        raise WireError(_FIELD, f"claims {claimed} bytes and holds {len(content)} or more")
    return content


def _read(body: bytes, limit: int) -> bytes:
    """At most `limit` bytes of content; memory grows only as data comes out."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    pieces: list[bytes] = []
    try:
        with decompressor.stream_reader(body, read_across_frames=False) as reader:
            while limit and (piece := reader.read(min(limit, _PIECE))):
                pieces.append(piece)
                limit -= len(piece)
    except zstandard.ZstdError as error:
        raise WireError(_FIELD, f"is not valid zstd: {error}") from error
    return b"".join(pieces)


def claimed_size(body: bytes, limit: int) -> int:
    """What the frame says it holds, at most `limit`: nothing is unpacked."""
    size = _stated_size(body)
    if size > limit:
        raise WireError(_FIELD, f"decompresses to {size} bytes; the limit is {limit}")
    return size


def _stated_size(body: bytes) -> int:
    try:
        size = zstandard.get_frame_parameters(body).content_size
    except zstandard.ZstdError as error:
        raise WireError(_FIELD, f"is not a zstd frame: {error}") from error
    if size == zstandard.CONTENTSIZE_UNKNOWN:
        raise WireError(_FIELD, "does not state its size: write the content size into the frame")
    return size
