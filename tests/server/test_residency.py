"""A run is brought into an engine's memory from its newest good snapshot, and let go once it is
written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tinkex.engine.messages import DropRun, LoadRun, WeightsRef
from tinkex.server.engines.engine import CommandFailed, EngineLost
from tinkex.server.engines.residence import Residence
from tinkex.server.operations.kinds import named
from tinkex.server.operations.log import Entry, RunLog
from tinkex.server.operations.run import Run
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.snapshots import SnapshotRow
from tinkex.server.training.residency import Residency

PLACE = Residence("tiny", 3)
NOW = 50.0


class Engine:
    """Takes commands, or answers them with an error."""

    is_away = False

    def __init__(self, *errors: Exception) -> None:
        self.commands: list[Any] = []
        self.lives: list[int] = []
        self._errors = list(errors)

    async def submit(self, command: Any, life: int) -> None:
        self.commands.append(command)
        self.lives.append(life)
        if self._errors:
            raise self._errors.pop(0)


class Snapshots:
    """Knows which folders are damaged; `take` ends as it is told."""

    def __init__(self, damaged: frozenset[str] = frozenset(), takes: Any = True) -> None:
        self.damaged, self.takes = damaged, takes
        self.taken = 0

    @contextmanager
    def using(self, _: SnapshotRow) -> Iterator[None]:
        yield

    async def problem(self, snapshot: SnapshotRow) -> str | None:
        return "a byte is wrong" if snapshot.folder in self.damaged else None

    async def reference(self, snapshot: SnapshotRow) -> WeightsRef:
        return WeightsRef(snapshot.folder)

    async def go_back(self, run: Run, _: str) -> bool:
        if run.before is None:
            return False
        run.fall_back()
        return True

    async def take(self, _run: Run, _engine: Any, _sent: Any) -> bool:
        self.taken += 1
        if isinstance(self.takes, Exception):
            raise self.takes
        return bool(self.takes)


def row(folder: str, seq_id: int) -> SnapshotRow:
    return SnapshotRow("m", seq_id, folder, seq_id, 10, 0.0, "digest")


def a_run(newest: SnapshotRow | None = None, before: SnapshotRow | None = None) -> Run:
    log = RunLog(-1 if newest is None else newest.seq_id)
    return Run(RunRow("m", "s", "key-a", "tiny", "{}", 0.0, 0.0), log, newest, before)


def residency(snapshots: Snapshots) -> Residency:
    clock = SimpleNamespace(monotonic=lambda: NOW, now=lambda: NOW)
    return Residency(SimpleNamespace(at=lambda _: None), snapshots, clock)


async def restored(run: Run, engine: Engine, snapshots: Snapshots) -> None:
    run.take_place(PLACE)
    await residency(snapshots).restore(run, engine)


async def evicted(run: Run, engine: Engine, snapshots: Snapshots) -> None:
    run.take_place(PLACE)
    run.settle(0.0)
    run.ask_to_leave()
    await residency(snapshots).evict(run, engine)


def begin_an_operation(run: Run) -> None:
    for seq_id, kind in ((0, "create_model"), (1, "forward_backward")):
        entry = Entry(f"r{seq_id}", seq_id, named(kind), b"", 0.0)
        run.log.admit(entry)
        run.log.accept(entry)
        found = run.log.next(0.0)
        assert isinstance(found, Entry)
        run.log.begin(found, 0.0)


async def test_a_lost_run_gets_its_newest_snapshot_in_the_life_that_has_room_for_it() -> None:
    run, engine = a_run(row("new", 4)), Engine()
    await restored(run, engine, Snapshots())
    (load,) = engine.commands
    assert isinstance(load, LoadRun)
    assert (load.source.path, load.create, engine.lives) == ("new", True, [3])
    assert (run.residence, run.settled_at) == (PLACE, NOW)
    assert run.restoring == "restoring from step 4, replaying 0 operations"


async def test_without_a_snapshot_nothing_is_loaded_and_its_log_is_played_from_the_start() -> None:
    run, engine = a_run(), Engine()
    await restored(run, engine, Snapshots())
    assert engine.commands == []
    assert run.residence == PLACE


@pytest.mark.parametrize("at_the_engine", [False, True])
async def test_a_snapshot_that_cannot_be_loaded_gives_way_to_the_one_before(
    at_the_engine: bool,
) -> None:
    run = a_run(row("new", 4), row("old", 2))
    engine = Engine(*[CommandFailed("server", "cannot be read")] if at_the_engine else [])
    await restored(run, engine, Snapshots(damaged=frozenset(() if at_the_engine else ("new",))))
    assert engine.commands[-1].source.path == "old"
    assert run.residence == PLACE


async def test_a_run_without_a_good_snapshot_is_broken_and_takes_no_room() -> None:
    run, engine = a_run(row("new", 4), row("old", 2)), Engine()
    await restored(run, engine, Snapshots(damaged=frozenset(("new", "old"))))
    assert (run.place, engine.commands) == (None, [])
    assert run.broken == "its snapshot cannot be loaded: a byte is wrong"


async def test_an_engine_that_dies_meanwhile_leaves_the_run_nowhere_and_whole() -> None:
    run = a_run(row("new", 4))
    await restored(run, Engine(EngineLost()), Snapshots())
    assert (run.place, run.broken) == (None, None)


async def test_a_run_leaves_once_it_is_written_down() -> None:
    run, engine, snapshots = a_run(), Engine(), Snapshots()
    begin_an_operation(run)
    await evicted(run, engine, snapshots)
    assert snapshots.taken == 1
    assert [type(each) for each in engine.commands] == [DropRun]
    assert run.place is None


async def test_what_a_snapshot_covers_is_not_written_down_again() -> None:
    run, engine, snapshots = a_run(row("new", 4)), Engine(), Snapshots()
    await evicted(run, engine, snapshots)
    assert (snapshots.taken, run.place) == (0, None)


@pytest.mark.parametrize("why", [False, OSError(28, "No space left on device")])
async def test_who_cannot_be_written_down_stays_twice_and_then_goes_without(why: Any) -> None:
    run, engine, snapshots = a_run(), Engine(), Snapshots(takes=why)
    begin_an_operation(run)
    run.take_place(PLACE)
    run.settle(0.0)
    stayed = []
    for _ in range(3):
        run.ask_to_leave()
        await residency(snapshots).evict(run, engine)
        stayed.append(run.residence == PLACE)
    assert stayed == [True, True, False]
    assert len(engine.commands) == 1, "it is dropped once"


async def test_a_run_that_the_engine_will_not_let_go_of_stays() -> None:
    run = a_run(row("new", 4))
    await evicted(run, Engine(CommandFailed("server", "busy")), Snapshots())
    assert run.residence == PLACE
    assert run.stays_until > NOW
