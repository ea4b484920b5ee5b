"""The progress bar, as a terminal gets it."""

from __future__ import annotations

import io
import re

import pytest

from tinkex.cli.terminal.progress import Bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def last_line(self) -> str:
        """What is left to see, without colours."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        return plain.rstrip("\n").splitlines()[-1].split("\r")[-1]


def test_a_bar_shows_percent_and_position_and_ends_its_line() -> None:
    stream = Terminal()
    with Bar(stream, "Extracting", 4, "files") as shown:
        shown.advance(2)
        shown.relabel("Extracting weights")
        shown.advance(2)
    assert stream.last_line.startswith("Extracting weights ")
    assert "100% 4/4 files" in stream.last_line
    assert stream.getvalue().rstrip("\x1b[?25h").endswith("\n")


def test_a_total_may_become_known_piece_by_piece() -> None:
    stream = Terminal()
    with Bar(stream, "Downloading", None, "bytes") as shown:
        for _ in range(2):
            shown.extend(5 << 20)
            shown.advance(4 << 20)
    assert " 80% 8.0/10.0 MiB" in stream.last_line


def test_bytes_from_an_earlier_try_do_not_count_as_speed() -> None:
    stream = Terminal()
    with Bar(stream, "Downloading", 100 << 20, "bytes") as shown:
        shown.advance(1 << 20)
        shown.resume_at(50 << 20)
        assert shown._progress is not None
        (task,) = shown._progress.tasks
        assert task.completed == 51 << 20
        assert task.speed is None


def test_a_label_is_shown_as_it_is() -> None:
    stream = Terminal()
    with Bar(stream, "[bold]tinker://a/b[/bold]", 1, "[red]things") as shown:
        shown.advance(1)
    assert "[bold]tinker://a/b[/bold]" in stream.last_line
    assert "[red]things" in stream.last_line


@pytest.mark.parametrize("columns", ["1", "8", "20", "200"])
def test_a_bar_fits_any_width(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    stream = Terminal()
    with Bar(stream, "Downloading", 10, "files") as shown:
        shown.advance(3)
    assert len(stream.last_line) <= int(columns)


def test_nobody_looks_and_nothing_is_loaded() -> None:
    with Bar(None, "Downloading", 10, "files") as shown:
        shown.advance(3)
        shown.resume_at(3)
        shown.extend(1)
        shown.relabel("x")
    assert shown._progress is None
