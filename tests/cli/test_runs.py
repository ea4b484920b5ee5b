"""Runs by name and short id, and what our server lets one change about them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from support.command_line import (
    CommandLine,
    FakeClients,
    FakeRest,
    Ran,
    checkpoint,
    done,
    failed,
    status_error,
    training_run,
)

FIRST = "1f3a90cc-4a52-4d5b-9d0e-7f1b2c3d4e5f:train:0"
SECOND = "1f3a90cc-4a52-4d5b-9d0e-7f1b2c3d4e5f:train:1"
OTHER = "77777777-4a52-4d5b-9d0e-7f1b2c3d4e5f:train:0"


class Records(FakeRest):
    """Three runs that can be changed; `lacks` answers as a server that knows no such request."""

    def __init__(self, state: str | None = "ended", lacks: int | None = None) -> None:
        names = {FIRST: "first try", SECOND: None, OTHER: "1f3a"}
        runs = [
            training_run(1, training_run_id=run_id, name=name, state=state, step=3, note="n")
            for run_id, name in names.items()
        ]
        saved = [checkpoint(1, run=OTHER), checkpoint(2, run=OTHER, public=True)]
        super().__init__(saved, runs)
        self.lacks = lacks

    def _change(self, *call: Any) -> Future[Any]:
        self.calls.append(call)
        return failed(status_error(self.lacks, "Not Found")) if self.lacks else done()

    def rename_training_run(self, run_id: str, name: str | None) -> Future[Any]:
        return self._change("rename", run_id, name)

    def note_training_run(self, run_id: str, note: str | None) -> Future[Any]:
        return self._change("note", run_id, note)

    def stop_training_run(self, run_id: str) -> Future[Any]:
        return self._change("stop", run_id)

    def delete_training_run(self, run_id: str) -> Future[Any]:
        return self._change("delete", run_id)


def tinkex(rest: FakeRest, *line: str, typed: str = "", person: bool = False) -> Ran:
    return CommandLine(FakeClients(rest), typed=typed, interactive=person)(*line)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (FIRST, FIRST),
        ("1f3a90cc:1", SECOND),
        ("7", OTHER),
        ("first try", FIRST),
        (SECOND[:-1] + "1", SECOND),
    ],
)
def test_a_run_is_found_by_id_start_of_id_or_name(text: str, meant: str) -> None:
    rest = Records()
    assert tinkex(rest, "run", "info", text).code == 0
    assert rest.calls[-1] == ("get_training_run", meant, "owned")


def test_a_name_wins_over_the_start_of_an_id() -> None:
    rest = Records()
    assert tinkex(rest, "run", "info", "1f3a").code == 0
    assert rest.calls[-1] == ("get_training_run", OTHER, "owned")


def test_what_could_mean_several_lists_them() -> None:
    ran = tinkex(Records(), "run", "info", "1f3a90cc")
    assert ran.code == 2
    assert "'1f3a90cc' means 2 training runs" in ran.err
    assert f"  {FIRST}  first try\n  {SECOND}  org/model-8b\n" in ran.err


def test_what_means_none_says_where_to_look() -> None:
    ran = tinkex(Records(), "run", "info", "nothing", "--local")
    assert ran.code == 1
    assert "No training run is called 'nothing'" in ran.err
    assert ran.err.endswith("Next: tinkex run list --local\n")


def test_a_whole_id_asks_for_no_listing() -> None:
    rest = Records()
    tinkex(rest, "run", "info", FIRST)
    assert [call[0] for call in rest.calls] == ["get_training_run"]


@pytest.mark.parametrize("line", [("info",), ("publish",), ("set-ttl", "--remove"), ("unpublish",)])
def test_paths_take_short_ids_too(line: tuple[str, ...]) -> None:
    rest = Records()
    ran = tinkex(rest, "checkpoint", *line, "tinker://7777/weights/0001")
    assert ran.code == 0, ran.err
    assert f"tinker://{OTHER}/weights/0001" in ran.out


def test_a_run_is_renamed_and_noted() -> None:
    rest = Records()
    assert tinkex(rest, "run", "rename", "7", "best").out == f"{OTHER} is now called best\n"
    assert tinkex(rest, "run", "rename", "7", "").code == 0
    assert tinkex(rest, "run", "note", "7", "a remark").code == 0
    assert tinkex(rest, "run", "note", "7").out == "n\n"
    changes = [call for call in rest.calls if call[0] in ("rename", "note")]
    assert changes == [
        ("rename", OTHER, "best"),
        ("rename", OTHER, None),
        ("note", OTHER, "a remark"),
    ]


@pytest.mark.parametrize(("typed", "stopped"), [("y\n", True), ("n\n", False)])
def test_stopping_asks_first(typed: str, stopped: bool) -> None:
    rest = Records(state="live")
    ran = tinkex(rest, "run", "stop", "7", typed=typed, person=True)
    assert ran.code == 0
    assert "since its last checkpoint will be lost" in ran.err
    assert (("stop", OTHER) in rest.calls) is stopped


def test_deleting_shows_what_goes_with_it() -> None:
    rest = Records()
    ran = tinkex(rest, "run", "delete", "7", typed="y\n", person=True)
    assert ran.code == 0, ran.err
    assert "and with it 2 checkpoints (3.0 MB, 1 of them public)" in ran.err
    assert "cannot be undone" in ran.err
    assert ran.out == f"Deleted {OTHER} and 2 checkpoints\n"


def test_a_live_run_is_not_deleted() -> None:
    rest = Records(state="live")
    ran = tinkex(rest, "run", "delete", "7", "--yes")
    assert ran.code == 1
    assert "Next: tinkex run stop 77777777:0" in ran.err
    assert not any(call[0] == "delete" for call in rest.calls)


@pytest.mark.parametrize("status", [404, 405])
@pytest.mark.parametrize(
    "line", [("rename", "7", "x"), ("note", "7", "x"), ("stop", "7", "-y"), ("delete", "7", "-y")]
)
def test_a_server_without_these_is_said_to_lack_them(line: tuple[str, ...], status: int) -> None:
    ran = tinkex(Records(state=None, lacks=status), "run", *line)
    assert ran.code == 1
    assert f"This server has no 'run {line[0]}'" in ran.err
    assert "the hosted service does not know it" in ran.err
