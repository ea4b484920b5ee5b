"""The database: durable when it says so, one failure alone, old files brought up to date."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tinkex.server.storage.database import open_store, sqlite
from tinkex.server.storage.database.commit import Job, commit_batch
from tinkex.server.storage.database.migrations import MIGRATIONS, NewerDatabase, migrate
from tinkex.server.storage.database.sqlite import SqliteConnection, connect, upgrade
from tinkex.server.storage.database.transactions import DatabaseError


async def test_writes_are_there_when_they_return_and_values_come_back(tmp_path: Path) -> None:
    store = open_store(tmp_path / "x.db")

    def insert(number: int) -> object:
        def work(db: SqliteConnection) -> int:
            db.execute(
                """INSERT INTO sessions (session_id, tenant, created_at, seen_at, tags,
                    user_metadata) VALUES (?, 't', 0, 0, '[]', '{}')""",
                (f"s{number}",),
            )
            return number

        return work

    values = await asyncio.gather(*(store.write(insert(n)) for n in range(200)))
    assert values == list(range(200))
    with sqlite3.connect(tmp_path / "x.db") as other:
        (count,) = other.execute("SELECT COUNT(*) FROM sessions").fetchone()
    other.close()
    assert count == 200
    store.close()


def test_a_failing_job_undoes_itself_only(tmp_path: Path) -> None:
    db = connect(tmp_path / "x.db")
    db.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")

    def bad(connection: SqliteConnection) -> None:
        connection.execute("INSERT INTO t VALUES (99)")
        raise ValueError("no")

    jobs = [Job(lambda c: c.execute("INSERT INTO t VALUES (1)").rowcount), Job(bad)]
    jobs.append(Job(lambda c: c.execute("INSERT INTO t VALUES (2)").rowcount))
    commit_batch(db, jobs)
    assert [row[0] for row in db.execute("SELECT n FROM t")] == [1, 2]
    assert [type(job.error) for job in jobs] == [type(None), ValueError, type(None)]
    db.close()


def test_a_failing_commit_fails_and_undoes_every_job(tmp_path: Path) -> None:
    db = connect(tmp_path / "x.db")
    db.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    db.execute("PRAGMA max_page_count = 10")
    jobs = [Job(lambda c: c.execute("INSERT INTO t VALUES (1)")) for _ in range(1)]
    jobs.append(Job(lambda c: c.execute("CREATE TABLE fat AS SELECT randomblob(1000000) AS b")))
    commit_batch(db, jobs)
    assert isinstance(jobs[1].error, DatabaseError)
    assert not db.in_transaction
    db.execute("PRAGMA max_page_count = 100000")
    later = Job(lambda c: c.execute("INSERT INTO t VALUES (5)"))
    commit_batch(db, [later])
    assert later.error is None
    db.close()


async def test_posted_writes_keep_their_order_and_survive_closing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "x.db")
    store.post(lambda db: db.execute("CREATE TABLE t (n)"))
    for number in range(100):
        store.post(lambda db, n=number: db.execute("INSERT INTO t VALUES (?)", (n,)))
    store.close()
    with sqlite3.connect(tmp_path / "x.db") as db:
        assert [row[0] for row in db.execute("SELECT n FROM t")] == list(range(100))
    db.close()


@pytest.mark.parametrize("version", range(len(MIGRATIONS) + 1))
def test_a_database_of_every_earlier_version_is_brought_up_to_date(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "x.db"
    db = connect(path)
    for number, step in enumerate(MIGRATIONS[:version], start=1):
        step(db)
        db.execute(f"PRAGMA user_version = {number}")
    if version:
        db.execute(
            """INSERT INTO sessions (session_id, tenant, created_at, seen_at, tags, user_metadata)
                VALUES ('old', 't', 0, 0, '[]', '{}')"""
        )
    assert migrate(db) == len(MIGRATIONS)
    fresh = connect(tmp_path / "fresh.db")
    migrate(fresh)
    shape = "SELECT type, name, tbl_name FROM sqlite_master ORDER BY name"
    assert [tuple(row) for row in db.execute(shape)] == [tuple(row) for row in fresh.execute(shape)]
    (count,) = db.execute("SELECT COUNT(*) FROM sessions").fetchone()
    assert count == bool(version)
    db.close()
    fresh.close()


def test_a_database_of_a_later_release_is_left_alone(tmp_path: Path) -> None:
    db = connect(tmp_path / "x.db")
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(NewerDatabase):
        migrate(db)
    db.close()


def test_a_file_that_can_only_be_read_is_refused_before_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the tests may write everything: SQLite is told that it may not."""
    upgrade(tmp_path / "x.db")
    reading = f"{(tmp_path / 'x.db').as_uri()}?mode=ro"

    def connect_only_reading(_: Path) -> SqliteConnection:
        return sqlite3.connect(reading, uri=True, isolation_level=None, factory=SqliteConnection)

    monkeypatch.setattr(sqlite, "connect", connect_only_reading)
    with pytest.raises(DatabaseError, match="readonly"):
        upgrade(tmp_path / "x.db")


def test_a_file_that_somebody_has_locked_for_a_moment_is_no_reason_not_to_start(
    tmp_path: Path,
) -> None:
    upgrade(tmp_path / "x.db")
    with closing(connect(tmp_path / "x.db")) as other:
        other.begin()
        upgrade(tmp_path / "x.db")
