"""zstd bodies: one frame with its size in front, and decompression that cannot be talked into
filling the memory.
"""

import zstandard

from tinkex.wire.errors import WireError
from tinkex.wire.limits import MAX_REQUEST_BYTES

_LEVEL = 3
_FIELD = "body"


def compress(body: bytes) -> bytes:
    """One frame that states its content size."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(body)


def decompress(body: bytes, limit: int = MAX_REQUEST_BYTES) -> bytes:
    """The content of one frame, at most `limit` bytes.

    A frame that claims more is refused before anything is allocated; one that claims nothing, or
    less than it holds, is read up to the limit and not further.
    """
    claimed = _claimed_size(body)
    if claimed > limit:
        raise WireError(_FIELD, f"decompresses to {claimed} bytes; the limit is {limit}")
    decompressor = zstandard.ZstdDecompressor(max_window_size=max(1024, 1 << limit.bit_length()))
    reader = decompressor.stream_reader(body, read_across_frames=False)
    try:
        content = reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise WireError(_FIELD, f"is not valid zstd: {error}") from error
    if len(content) > limit:
        raise WireError(_FIELD, f"decompresses to more than {limit} bytes, the limit")
    if 0 <= claimed != len(content):
        raise WireError(_FIELD, f"is cut short: {len(content)} bytes of {claimed}")
    return content


def _claimed_size(body: bytes) -> int:
    """What the frame header says, or -1 when it says nothing."""
    try:
        parameters = zstandard.get_frame_parameters(body)
    except zstandard.ZstdError as error:
        raise WireError(_FIELD, f"is not a zstd frame: {error}") from error
    size = parameters.content_size
    return -1 if size == zstandard.CONTENTSIZE_UNKNOWN else size
