"""Health tells of a database that takes no writes, and of an object store that does not answer."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.served import served
from tinkex.server.clock import SystemClock
from tinkex.server.storage import database_watch
from tinkex.server.storage.database import Store
from tinkex.server.storage.database.sqlite import connect, upgrade
from tinkex.server.storage.database.writer import ThreadWriter
from tinkex.server.storage.database_watch import DatabaseWatch


async def test_a_locked_database_is_told_by_health_until_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_watch, "PATIENCE_S", 0.1)
    monkeypatch.setattr(database_watch, "_FRESH_S", 0.0)
    async with served(tmp_path) as api:
        assert (await api.send("GET", "healthz")).json()["degraded"] == []
        path = api.core.home.database
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            answer = await api.send("GET", "healthz")
            assert answer.status_code == 503
            assert "the database has not taken a write for " in answer.text
            other.execute("ROLLBACK")
        monkeypatch.setattr(database_watch, "PATIENCE_S", 60.0)
        assert (await api.send("GET", "healthz")).status_code == 200


async def test_a_database_that_can_only_be_read_is_told_with_its_own_words(tmp_path: Path) -> None:
    path = tmp_path / "database"
    upgrade(path)
    writing = connect(path)
    writing.execute("PRAGMA query_only = ON")
    store = Store(ThreadWriter(writing), *(connect(path) for _ in range(3)))
    try:
        trouble = await DatabaseWatch(store, SystemClock()).trouble()
    finally:
        store.close()
    assert trouble == "the database takes no writes: attempt to write a readonly database"


async def test_asking_takes_the_room_that_a_write_takes_and_leaves_no_row(tmp_path: Path) -> None:
    """On a full disk a statement that changes nothing still succeeds: health said ok by chance."""
    async with served(tmp_path) as api:
        log = api.core.home.database.with_name(f"{api.core.home.database.name}-wal")
        kept = log.stat().st_size
        assert await DatabaseWatch(api.core.store, api.core.clock).trouble() is None
        assert log.stat().st_size > kept
        with closing(sqlite3.connect(api.core.home.database)) as other:
            assert other.execute("SELECT count(*) FROM sessions").fetchone() == (0,)


async def test_many_who_ask_at_once_cost_one_write(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        watch = DatabaseWatch(api.core.store, api.core.clock)
        assert watch._ask() is watch._ask()
        assert await watch.trouble() is None


async def test_a_store_that_does_not_answer_is_degraded_not_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as api:
        monkeypatch.setattr(api.core, "store_trouble", lambda: "the object store does not answer")
        answer = await api.send("GET", "healthz")
        assert answer.status_code == 200
        assert answer.json()["degraded"] == ["the object store does not answer"]
