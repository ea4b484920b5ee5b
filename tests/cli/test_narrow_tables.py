"""Tables on terminals that are too narrow for their boxes."""

from __future__ import annotations

import pytest

from support.command_line import Terminal
from tinkex.cli.terminal.tables import write_table


def test_only_a_row_that_has_a_reason_has_a_line_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    stream, why = Terminal(), "was drained by its operator, who said nothing"
    rows = [["a-model-of-some-name#0", "ready", ""], ["a-model-of-some-name#1", "drained", why]]
    write_table(stream, None, iter([(["Engine", "State", "Reason"], rows)]))
    assert stream.getvalue().splitlines() == [
        "Engine                  State",
        "a-model-of-some-name#0  ready",
        "a-model-of-some-name#1  drained",
        f"  {why}",
    ]
