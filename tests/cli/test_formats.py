"""The four formatters: our rules, and the official ones wherever both are defined."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tinkex.cli.terminal.formats import format_bool, format_optional, format_size, format_timestamp

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
DAY = 86400


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "just now"),
        (60, "just now"),
        (61, "1 minute ago"),
        (3600, "60 minutes ago"),
        (3601, "1 hour ago"),
        (DAY, "1 day ago"),
        (7 * DAY, "7 days ago"),
        (8 * DAY, "1 week ago"),
        (30 * DAY, "4 weeks ago"),
        (31 * DAY, "2025-12-31"),
        (-30, "in less than a minute"),
        (-2 * 3600 - 1, "in 2 hours"),
        (-40 * DAY, "2026-03-12"),
    ],
)
def test_ages_are_told_in_their_largest_unit(seconds: int, expected: str) -> None:
    assert format_timestamp(NOW - timedelta(seconds=seconds), NOW) == expected


def test_timestamps_may_be_text_naive_missing_or_nonsense() -> None:
    assert format_timestamp("2026-01-31T11:00:00Z", NOW + timedelta(seconds=5)) == "1 hour ago"
    assert format_timestamp(datetime(2026, 1, 30, 12), NOW) == "1 day ago"
    assert format_timestamp(None) == format_timestamp("") == "N/A"
    assert format_timestamp("soon") == "soon"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (-1, "N/A"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (1536, "1.5 KB"),
        (5 * 1024**3, "5.0 GB"),
        (1024**5, "1.0 PB"),
        (1024**6, "1.0 EB"),
    ],
)
def test_sizes_use_base_1024(size: int, expected: str) -> None:
    assert format_size(size) == expected


def test_truth_and_nothing() -> None:
    assert (format_bool(True), format_bool(False)) == ("Yes", "No")
    assert format_optional(None) == "N/A"
    assert format_optional(5) == "5"
    assert format_optional(True, format_bool) == "Yes"


def test_sizes_and_ages_agree_with_the_official_cli() -> None:
    official = pytest.importorskip("tinker.cli.output")
    edges = [0, 59, 62, 119, 122, 3605, 7190, 7205, DAY + 5, 6 * DAY + 5, 7 * DAY + 5, 8 * DAY + 5]
    edges += [14 * DAY + 5, 29 * DAY + 5, 30 * DAY + 5, 31 * DAY + 5, 400 * DAY]
    for seconds in (*edges, *(-edge - 30 for edge in edges)):
        moment = datetime.now(UTC) - timedelta(seconds=seconds)
        assert format_timestamp(moment) == official.format_timestamp(moment), seconds
    for size in (-5, 0, 1023, 1024, 10**6, 10**9, 10**12, 10**15, 10**18, 10**21):
        assert format_size(size) == official.format_size(size)
