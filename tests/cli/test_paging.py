"""Long listings: whole pages, several at once, nothing fetched twice."""

from __future__ import annotations

import json

import pytest

from support.command_line import CommandLine, FakeClients, FakeRest, checkpoint, training_run


@pytest.mark.parametrize(
    ("flags", "pages", "shown"),
    [
        ([], [(20, 0)], 20),
        (["--limit", "0"], [(1000, 0), (1000, 1000), (500, 2000)], 2500),
        (["--limit", "1500"], [(1000, 0), (500, 1000)], 1500),
        (["--limit", "3000"], [(1000, 0), (1000, 1000), (500, 2000)], 2500),
        (["--limit", "0", "--offset", "1400"], [(1000, 1400), (100, 2400)], 1100),
        (["--limit", "7", "--offset", "2496"], [(7, 2496)], 4),
    ],
)
def test_checkpoints_come_in_pages_of_a_thousand(
    flags: list[str], pages: list[tuple[int, int]], shown: int
) -> None:
    rest = FakeRest([checkpoint(number) for number in range(2500)])
    ran = CommandLine(FakeClients(rest))("checkpoint", "list", *flags, "--json")
    assert [call[1:] for call in rest.calls] == pages
    listed = [item["tinker_path"] for item in json.loads(ran.out)["checkpoints"]]
    start = int(flags[-1]) if "--offset" in flags else 0
    assert listed == [c.tinker_path for c in rest.checkpoints[start : start + shown]]


def test_runs_come_in_pages_of_a_hundred_and_the_rest_is_counted() -> None:
    rest = FakeRest(runs=[training_run(number) for number in range(250)])
    ran = CommandLine(FakeClients(rest))(
        "run", "list", "--limit", "150", "--access-scope=accessible"
    )
    assert [call[1:] for call in rest.calls] == [(100, 0, "accessible"), (50, 100, "accessible")]
    title = ran.out.splitlines()[0]
    assert title == "150 training runs (100 more not shown, use --limit to see more)"


def test_a_bar_on_a_terminal_only_and_never_in_json() -> None:
    rest = FakeRest([checkpoint(number) for number in range(1100)])
    shown = CommandLine(FakeClients(rest), terminal=True)("checkpoint", "list", "--limit", "0")
    assert "Fetching all checkpoints" in shown.err
    assert "1100/1100" in shown.err
    for line in (CommandLine(FakeClients(rest)), CommandLine(FakeClients(rest), terminal=True)):
        assert line("checkpoint", "list", "--limit", "0", "--json").err == ""
