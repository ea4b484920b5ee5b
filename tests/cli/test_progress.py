"""The progress bar, as lines of text."""

from __future__ import annotations

import io

from tinkex.cli.terminal.progress import Bar


def bar(done: int, total: int | None, unit: str = "bytes", skipped: int = 0) -> Bar:
    made = Bar(None, "Downloading", total, unit)
    made.resume_at(skipped)
    made.advance(done - skipped)
    return made


def test_a_bar_shows_percent_position_rate_and_time_left() -> None:
    line = bar(25 << 20, 100 << 20).line(90, elapsed=5.0)
    assert line == f"Downloading  [{'#' * 7}{'-' * 24}]  25%  25.0 MB/100.0 MB  5.0 MB/s  ETA 00:15"


def test_bytes_from_an_earlier_try_do_not_count_as_speed() -> None:
    assert "10.0 MB/s" in bar(60 << 20, 100 << 20, skipped=50 << 20).line(90, elapsed=1.0)


def test_an_unknown_total_shows_what_has_come() -> None:
    assert bar(2048, None).line(80, elapsed=1.0) == "Downloading  2.0 KB  2.0 KB/s"


def test_a_bar_fits_any_width() -> None:
    for width in range(1, 120):
        assert len(bar(3, 10, "files").line(width, elapsed=9.0)) <= width


def test_a_finished_bar_ends_its_line() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with Bar(stream, "Extracting", 2, "files") as shown:
        shown.advance(2)
    assert stream.getvalue().endswith("\n")
    assert "100%  2/2 files" in stream.getvalue()
