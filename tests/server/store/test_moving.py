"""A home's rows move to PostgreSQL whole, or not at all; begun again, the move goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tinkex.server.hosting.home_moving import CannotMove, move
from tinkex.server.storage.database import audit, kept_samples, sessions, usage
from tinkex.server.storage.database.migrations import migrate
from tinkex.server.storage.database.postgres import lease, moving
from tinkex.server.storage.database.postgres.lease import LeaseHeld
from tinkex.server.storage.database.sessions import SessionRow
from tinkex.server.storage.database.sqlite import connect
from tinkex.server.storage.home import Home
from tinkex.server.storage.home_rows import WrongRows
from tinkex.server.storage.home_usage import measure

SESSIONS = 7
_DIES = """
import os, signal, sys
from tinkex.server.storage.database.postgres import lease
lease.take(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(moving, "_PIECE", 2)
    with closing(connect(tmp_path / "tinkex.db")) as db:
        migrate(db)
        for number in range(SESSIONS):
            sessions.insert(
                db, SessionRow(f"s{number}é", "t", number / 3, 1e9, user_metadata={"k": "ü\0"})
            )
            usage.add(db, usage.Use(number, usage.Source("t"), "training", 0.1))
            audit.add(db, audit.AuditRow(1.0, "t", "checkpoints", "e"))
            kept_samples.add(db, kept_samples.Source("t", "b"), 1.0, bytes(range(256)))
    return tmp_path


async def test_rows_are_the_same_and_the_home_is_served_from_there_only(
    home: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    (step,) = move(home, None, database, told.append)
    assert step.count == 4 * SESSIONS
    assert any(line.startswith(f"sessions: {SESSIONS} rows, sha256 ") for line in told)
    with pytest.raises(WrongRows, match="PostgreSQL"):
        Home(home)
    with pytest.raises(WrongRows, match="TINKEX_DATABASE"):
        measure(home)
    monkeypatch.setenv("TINKEX_DATABASE", database)
    assert measure(home).size_bytes
    held = lease.take(database)
    served = Home(home, lease=held)
    with closing(held.open_store()) as store:
        found = await store.read(sessions.get, "s3é")
        assert found == SessionRow("s3é", "t", 1.0, 1e9, user_metadata={"k": "ü\0"})
        await store.write(audit.add, audit.AuditRow(2.0, "t", "projects", "new"))
        rows = await store.query(audit.between, "t", None, 0.0, 9.0, 1)
        assert [row.event for row in rows] == ["new"], "numbered behind those that were copied"
    served.release()


def test_a_move_that_was_cut_off_goes_on_and_doubles_nothing(
    home: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, left = moving._Table.put, 9

    def put(table: moving._Table, *arguments: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        whole(table, *arguments)

    with monkeypatch.context() as cut:
        cut.setattr(moving._Table, "put", put)
        with pytest.raises(KeyboardInterrupt):
            move(home, None, database, print)
    Home(home).release()
    assert move(home, None, database, print)[0].count == 4 * SESSIONS


def test_a_move_begun_again_right_after_a_kill_is_not_refused_for_the_dead(
    home: Path, database: str
) -> None:
    killed = subprocess.run([sys.executable, "-c", _DIES, database], check=False)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(LeaseHeld):
        lease.take(database)
    assert move(home, None, database, print)[0].count == 4 * SESSIONS


def test_rows_that_changed_since_are_noticed_and_nothing_is_switched(
    home: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as cut:
        cut.setattr(moving, "home_rows", None)
        with pytest.raises(AttributeError):
            move(home, None, database, print)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE tinkex.sessions SET tenant = 'other' WHERE session_id = 's1é'")
    with pytest.raises(CannotMove, match="other rows in sessions"):
        move(home, None, database, print)
    Home(home).release()


def test_a_database_that_another_took_after_a_move_was_cut_off_gets_no_row(
    home: Path, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off at its first moment, before a table was made there."""
    with monkeypatch.context() as cut:
        cut.setattr(moving, "PostgresConnection", None)
        with pytest.raises(TypeError):
            move(home, None, database, print)
    other = tmp_path / "other"
    held = lease.take(database)
    served = Home(other, lease=held)
    with closing(held.open_store()):
        pass
    served.release()
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO tinkex.usage VALUES (0, 'eve', '', '', '', '', 0, 1.0)")
    with pytest.raises(CannotMove, match="other rows in usage"):
        move(home, None, database, print)
    with psycopg.connect(database) as connection:
        (rows,) = connection.execute("SELECT COUNT(*) FROM tinkex.sessions").fetchone() or (None,)
        assert rows == 0


def test_a_database_of_another_home_is_refused(home: Path, database: str) -> None:
    held = lease.take(database)
    held.open_store().close()
    with pytest.raises(CannotMove, match="in use by process"):
        move(home, None, database, print)
    held.give_back()
    with pytest.raises(CannotMove, match="belongs to another home"):
        move(home, None, database, print)


def test_a_server_does_not_take_files_of_another_home_for_its_own(
    home: Path, database: str, tmp_path: Path
) -> None:
    held = lease.take(database)
    with pytest.raises(WrongRows, match="tinkex home migrate"):
        Home(home, lease=held)
    Home(tmp_path / "first", lease=held).release()
    again = lease.take(database)
    again.open_store().close()
    again.give_back()
    later = lease.take(database)
    with pytest.raises(WrongRows, match="shared folder"):
        Home(tmp_path / "empty", lease=later)
    Home(tmp_path / "first", lease=later).release()
