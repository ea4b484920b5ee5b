"""One range of bytes is honoured; anything else means the whole."""

from __future__ import annotations

import pytest

from tinkex.server.checkpoints.byte_ranges import OutOfRange, asked


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-", 0, 100),
        ("bytes=3-9", 3, 10),
        ("bytes=99-", 99, 100),
        ("bytes=90-1000", 90, 100),
        ("bytes=-10", 90, 100),
        ("bytes=-1000", 0, 100),
    ],
)
def test_one_range_is_read(header: str, start: int, end: int) -> None:
    span = asked(header, 100)
    assert span is not None
    assert (span.start, span.end) == (start, end)
    assert span.header == f"bytes {start}-{end - 1}/100"


@pytest.mark.parametrize(
    "header", [None, "", "bytes=", "bytes=-", "bytes=0-1,3-4", "lines=1-2", "bytes=9-3", "bytes=x-"]
)
def test_anything_else_means_the_whole(header: str | None) -> None:
    assert asked(header, 100) is None


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=200-300", "bytes=-0"])
def test_what_begins_behind_the_end_is_refused(header: str) -> None:
    with pytest.raises(OutOfRange, match="100 bytes"):
        asked(header, 100)
