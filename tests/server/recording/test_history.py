"""A history: every point is there, any range comes at any resolution, and it stops growing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tinkex.server.recording import folding
from tinkex.server.recording.folding import BLOCK, next_fold
from tinkex.server.recording.history import Wanted, read
from tinkex.server.recording.steps import Measured, single
from tinkex.server.storage.database import curves, points
from tinkex.server.storage.database.migrations import migrate
from tinkex.server.storage.database.points import Point
from tinkex.server.storage.database.sqlite import SqliteConnection, connect


@pytest.fixture
def db(tmp_path: Path) -> Iterator[SqliteConnection]:
    connection = connect(tmp_path / "x.db")
    migrate(connection)
    connection.execute("BEGIN")
    yield connection
    connection.close()


def add(db: SqliteConnection, first: int, last: int) -> None:
    for n in range(first, last + 1):
        values = {"loss": single(1000.0 / n), **({"rare": float(n)} if n % 10 == 0 else {})}
        points.put(db, "r", Point(n, n, n, 100.0 + n, True, values))


def fold(db: SqliteConnection, owner: str) -> int:
    """All that is to be done, as `Watch` does it; how many pieces it was."""
    pieces = 0
    while (found := next_fold(db, owner)) is not None:
        assert found.write(db)
        pieces += 1
    return pieces


def test_what_is_folded_reads_as_it_did_before(db: SqliteConnection) -> None:
    add(db, 1, 3 * BLOCK)
    before = read(db, "r", Wanted(buckets=10_000))
    assert fold(db, "r") == 2
    assert len(points.of_owner(db, "r")) == BLOCK
    assert read(db, "r", Wanted(buckets=10_000)) == before
    assert before["points"] == 3 * BLOCK
    assert before["series"]["loss"]["mean"][0] == 1000.0
    assert before["series"]["rare"]["x"][:2] == [10.0, 20.0]


def test_no_extreme_is_lost_at_any_resolution(db: SqliteConnection) -> None:
    add(db, 1, 2 * BLOCK)
    spike = Point(700, 700, 700, 800.0, True, {"loss": 12345.0})
    points.put(db, "r", spike)
    fold(db, "r")
    for buckets in (1, 7, 100):
        series = read(db, "r", Wanted(("loss",), buckets=buckets))["series"]["loss"]
        assert len(series["x"]) <= buckets
        assert max(series["max"]) == 12345.0
        assert min(series["min"]) == pytest.approx(1000.0 / (2 * BLOCK), rel=1e-6)
        assert sum(series["count"]) == 2 * BLOCK


def test_a_range_holds_what_lies_in_it_and_no_more(db: SqliteConnection) -> None:
    add(db, 1, 2 * BLOCK)
    fold(db, "r")
    found = read(db, "r", Wanted(("loss",), low=10.0, high=20.0))
    assert found["series"]["loss"]["x"] == [float(n) for n in range(10, 21)]
    assert (found["from"], found["to"], found["points"], found["last"]) == (10.0, 20.0, 11, 1024)
    over_time = read(db, "r", Wanted(("loss",), x="time", low=110.0, high=111.0))
    assert over_time["series"]["loss"]["x"] == [110.0, 111.0]


def test_a_history_stops_growing_and_its_newest_part_stays_whole(
    db: SqliteConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "MOST_BLOCKS", 4)
    for part in range(20):
        add(db, part * BLOCK + 1, (part + 1) * BLOCK)
        fold(db, "r")
    assert len(curves.blocks(db, "r", "at")) == 4
    total = 20 * BLOCK
    found = read(db, "r", Wanted(buckets=100_000))
    loss = found["series"]["loss"]
    assert sum(loss["count"]) == found["points"] == total
    assert loss["max"][0] == 1000.0
    assert loss["min"][-1] == pytest.approx(1000.0 / total, rel=1e-6)
    assert loss["count"][-BLOCK:] == [1] * BLOCK
    assert np.average(loss["mean"], weights=loss["count"]) == pytest.approx(
        np.mean(1000.0 / np.arange(1, total + 1)), rel=1e-5
    )
    assert found["series"]["rare"]["max"][-1] == total - total % 10


def test_a_fold_of_a_run_that_was_deleted_meanwhile_leaves_nothing(
    db: SqliteConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "MOST_BLOCKS", 1)
    add(db, 1, 3 * BLOCK)
    first = next_fold(db, "r")
    assert first is not None
    assert first.write(db)
    assert not first.write(db), "a fold that was made twice counts once"
    fold_of_rows = next_fold(db, "r")
    assert fold_of_rows is not None
    assert fold_of_rows.write(db)
    merge = next_fold(db, "r")
    assert merge is not None
    assert merge.blocks
    points.delete(db, ["r"])
    curves.delete(db, ["r"])
    assert not merge.write(db)
    assert not fold_of_rows.write(db)
    assert curves.metrics(db, "r") == []


def test_chunks_of_a_step_become_one_point(db: SqliteConnection) -> None:
    first = {"loss:sum": 6.0, "tokens:sum": 2.0, "e_max_violation:max": 3.0, "ratio:mean": 1.0}
    second = {"loss:sum": 2.0, "tokens:sum": 6.0, "e_max_violation:max": 1.0, "ratio:mean": 2.0}
    Measured("r", 1, 10.0, first, tokens=4, datums=1, wait_s=0.5).write(db)
    Measured("r", 2, 11.0, second, tokens=6, datums=3, wait_s=0.25).write(db)
    open_ = read(db, "r", Wanted())
    assert open_["series"]["loss"]["mean"] == [1.0]
    optimizer = {"optim/grad_norm": 4.0, "learning_rate": 0.5, "optim/step": 1.0}
    point = Measured("r", 3, 12.0, optimizer, ends_step=True).write(db)
    assert point is not None
    assert point.done
    assert point.values["tokens"] == 10.0
    assert point.values["ratio"] == 1.75
    assert point.values["e_max_violation:max"] == 3.0
    assert point.values["wait_s"] == 0.5
    assert point.values["grad_norm"] == 4.0
    assert Measured("r", 4, 14.0, first, tokens=4, datums=1).write(db) is not None
    following = Measured("r", 5, 14.0, optimizer, ends_step=True).write(db)
    assert following is not None
    assert following.n == 2
    assert following.values["step_s"] == 2.0
    assert following.values["tokens_per_s"] == 2.0


def test_an_operation_that_is_written_down_twice_counts_once(db: SqliteConnection) -> None:
    call = Measured("r", 1, 10.0, {"loss:sum": 6.0, "tokens:sum": 2.0}, tokens=4, datums=1)
    assert call.write(db) is not None
    assert call.write(db) is None
    assert read(db, "r", Wanted())["series"]["tokens"]["mean"] == [4.0]


def test_what_is_no_number_and_what_is_too_much_is_left_out(db: SqliteConnection) -> None:
    wild = {f"m{n}": 1.0 for n in range(500)} | {"inf": float("inf"), "x" * 100: 1.0}
    point = Measured("r", 1, 10.0, {"nan": float("nan"), **wild}, ends_step=True).write(db)
    assert point is not None
    assert len(point.values) <= 64
    assert not {"inf", "nan", "x" * 100} & point.values.keys()
