"""A run changes by its own methods only: where its state lives, what is under way, what is due."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tinkex
from tinkex.server.engines.residence import Residence
from tinkex.server.operations.kinds import named
from tinkex.server.operations.log import Entry, RunLog
from tinkex.server.operations.run import NEVER_MADE, Run
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.snapshots import SnapshotRow

SERVER = Path(tinkex.__file__).parent / "server"
HERE = Residence("tiny", 1)
OWNERS = {"operations/run.py": (Run, ""), "operations/log.py": (Entry, "operations.log import")}
"""The module that may write -> whose fields, and the text of those modules that can reach them."""


@pytest.fixture
def run() -> Run:
    return Run(RunRow("m", "s", "key-a", "tiny", '{"type":"adamw"}', 0.0, 0.0), RunLog())


def test_room_is_taken_before_state_arrives_and_kept_until_it_has_gone(run: Run) -> None:
    run.take_place(HERE)
    assert (run.place, run.residence, run.life) == (HERE, None, 0)
    run.settle(5.0)
    assert (run.place, run.residence, run.life) == (HERE, HERE, 1)
    run.ask_to_leave()
    assert (run.place, run.is_leaving) == (HERE, True)
    run.leave()
    assert (run.place, run.residence, run.is_leaving) == (None, None, False)


def test_a_run_that_is_nowhere_cannot_be_asked_to_leave(run: Run) -> None:
    run.ask_to_leave()
    assert not run.is_leaving
    run.take_place(HERE)
    run.ask_to_leave()
    assert not run.is_leaving


def test_a_run_that_could_not_leave_is_left_alone_longer_each_time(run: Run) -> None:
    run.take_place(HERE)
    run.settle(0.0)
    pauses = []
    for _ in range(8):
        run.ask_to_leave()
        run.stay(100.0)
        pauses.append(run.stays_until - 100.0)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert (run.residence, run.is_leaving) == (HERE, False)


def test_an_older_errand_does_not_end_the_sending_of_a_newer_one(run: Run) -> None:
    older = run.begin_errand()
    run.sent(older)
    newer = run.begin_errand()
    run.end_errand(older)
    assert (run.is_sending, run.active) == (True, 1)
    run.end_errand(newer)
    assert (run.is_sending, run.active) == (False, 0)


@pytest.mark.parametrize(
    ("kind", "steps", "due"),
    [("optim_step", 1, False), ("load_weights", 0, True), ("forward_backward", 0, False)],
)
def test_the_kind_of_what_ended_says_what_is_due(
    run: Run, kind: str, steps: int, due: bool
) -> None:
    run.ended(_entry(3, kind), failed=False)
    assert (run.steps_since_snapshot, run.snapshot_due) == (steps, due)
    run.begin_snapshot(9.0)
    assert (run.steps_since_snapshot, run.snapshot_due, run.snapshot_at) == (0, False, 9.0)


def test_a_failed_creation_breaks_a_run_and_a_failed_step_does_not(run: Run) -> None:
    run.ended(_entry(3, "optim_step"), failed=True)
    assert run.refusal is None
    run.ended(_entry(0, "create_model"), failed=True)
    assert run.refusal == NEVER_MADE


def test_a_damaged_snapshot_is_given_up_for_the_one_before(run: Run) -> None:
    first, second = (SnapshotRow("m", seq, f"f{seq}", seq, 1, 0.0, "") for seq in (1, 2))
    run.cover(first, None, 0)
    run.cover(second, first, 70)
    assert (run.snapshot, run.before, run.spare_bytes) == (second, first, 70)
    run.fall_back()
    assert (run.snapshot, run.before, run.spare_bytes) == (first, None, 0)


def test_nobody_can_write_a_runs_state_from_outside(run: Run) -> None:
    shown = [name for name in dir(Run) if isinstance(getattr(Run, name), property)]
    assert {"place", "residence", "active", "snapshot", "broken", "row"} <= set(shown)
    for name in shown:
        with pytest.raises(AttributeError):
            setattr(run, name, None)


@pytest.mark.parametrize("owner", OWNERS)
def test_nobody_else_in_the_server_writes_the_fields(owner: str) -> None:
    """Neither by their names nor around them; `self` is another class's own business."""
    seen, sees = OWNERS[owner]
    fields = {name for name in seen.__slots__ if name not in ("gaps", "log")}
    found = [
        f"{path.relative_to(SERVER)}:{line} {name}"
        for path in sorted(SERVER.rglob("*.py"))
        if path != SERVER / owner
        if sees in path.read_text()
        for line, name in _written(path)
        if name in fields
    ]
    assert not found


def _written(path: Path) -> list[tuple[int, str]]:
    """(line, name) of every assignment to an attribute of something other than `self`, and of
    every private one that is read so."""
    return [
        (node.lineno, node.attr)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        and (not isinstance(node.ctx, ast.Load) or node.attr.startswith("_"))
    ]


def _entry(seq_id: int, kind: str) -> Entry:
    return Entry(f"m:{seq_id}", seq_id, named(kind), b"", 0.0, state="running")
