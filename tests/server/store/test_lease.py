"""One server at a time: who lost the lease writes nothing; broken connections double nothing."""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from support.postgres import Postgres
from tinkex.server.storage.database import Store, sessions, usage
from tinkex.server.storage.database.postgres import lease
from tinkex.server.storage.database.postgres.lease import Lease, LeaseHeld
from tinkex.server.storage.database.postgres.pipelined import LeaseLost
from tinkex.server.storage.database.sessions import SessionRow
from tinkex.server.storage.database.transactions import DatabaseError, DatabaseUnavailable
from tinkex.server.storage.database.usage import Source, Use

SESSION = SessionRow("s", "t", 1.0, 1.0)
USE = Use(0, Source("t"), "training", 1.0)


@contextmanager
def opened(database: str) -> Iterator[tuple[Lease, Store]]:
    held = lease.take(database)
    held.on_lost = lambda: None
    with closing(held.open_store()) as store:
        yield held, store
    held.give_back()


def run(database: str, sql: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql)


def test_a_role_that_may_make_no_schema_is_told_what_it_needs(database: str) -> None:
    run(database, "CREATE ROLE poor LOGIN")
    try:
        with pytest.raises(DatabaseError, match=r"permission denied.*GRANT CREATE ON DATABASE"):
            lease.take(database.replace("postgres:", "poor:", 1))
    finally:
        run(database, "DROP ROLE poor")


def test_a_second_server_is_told_who_has_the_database_until_it_is_given_back(database: str) -> None:
    first = lease.take(database, "http://one:1")
    with pytest.raises(LeaseHeld, match="a server at http://one:1"):
        lease.take(database)
    told: list[str] = []

    def tell(why: str) -> None:
        told.append(why)
        first.give_back()

    second = lease.wait(database, "http://two:2", tell)
    assert second.number == first.number + 1
    assert second.home == first.home
    assert ["a server at http://one:1" in why and "take over" in why for why in told] == [True]
    second.give_back()


async def test_who_lost_the_lease_can_never_write_again(database: str) -> None:
    """As when a server stood still while another took over, and wakes up."""
    lost = threading.Event()
    with opened(database) as (first, old):
        first._over.set()  # stands still
        first._keeper.join()
        first.on_lost = lost.set
        run(database, "UPDATE tinkex.lease SET until = 'epoch'")
        with opened(database) as (_, new):
            with pytest.raises(LeaseLost):
                await old.write(sessions.insert, SESSION)
            assert lost.is_set()
            assert await new.read(sessions.get, "s") is None
            await new.write(sessions.insert, SESSION)


def test_a_server_that_wakes_up_notices_by_itself_that_it_was_replaced(database: str) -> None:
    lost = threading.Event()
    first = lease.take(database)
    first.on_lost = lost.set
    run(database, "UPDATE tinkex.lease SET number = number + 1")
    assert lost.wait(30)
    first.give_back()


def test_a_database_that_is_away_is_told_in_the_log_once_and_once_that_it_is_back(
    database: str, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    def said(words: str) -> bool:
        deadline = time.monotonic() + 30
        while words not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        return words in caplog.text

    caplog.set_level("INFO")
    held = lease.take(database)
    postgres.crash()
    assert said("the database takes no writes: ")
    time.sleep(3 * lease.RENEWED_EVERY_S)
    postgres.start()
    assert said("the database takes writes again")
    assert caplog.text.count("the database takes") == 2
    held.give_back()


def test_a_holder_comes_back_to_a_database_that_was_away_longer_than_its_lease(
    database: str,
) -> None:
    """Who waits sees the database again first, and a lease that nobody could renew."""
    first = lease.take(database, "http://one:1")
    told: list[str] = []

    def tell(why: str) -> None:
        told.append(why.rpartition(": ")[2])
        if len(told) == 1:
            first._stop_keeping()
            run(database, "UPDATE tinkex.lease SET until = clock_timestamp() - interval '1 s'")
            run(
                database,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
                "'tinkex' AND pid != (SELECT backend FROM tinkex.lease)",
            )
        elif len(told) == 3:
            assert lease._renewed(first._connection, first.number), "another has taken it"
            first.give_back()

    second = lease.wait(database, "http://two:2", tell)
    in_use = "waiting to take over when it stops"
    assert told == [in_use, "waiting for the database", in_use]
    second.give_back()


async def test_a_failing_job_undoes_itself_only(database: str) -> None:
    with opened(database) as (_, store):
        await store.write(sessions.insert, SESSION)
        await asyncio.to_thread(time.sleep, 0)
        writes = [
            store.write(usage.add, USE),
            store.write(sessions.insert, SESSION),
            store.write(_refuse),
            store.write(usage.add, USE),
        ]
        found = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(each) for each in found] == [type(None), DatabaseError, ValueError, type(None)]
        assert [use.amount for use in await store.query(usage.between, "t", -1.0, 1.0)] == [2.0]


def _refuse(db: object) -> None:
    raise ValueError("no")


async def test_a_database_that_cannot_be_written_is_asked_again_and_written_when_it_can(
    database: str,
) -> None:
    """As after it became a copy of another: on connections made while it was one."""
    name = urlsplit(database).path[1:]
    with opened(database) as (held, store):
        run(database, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        run(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE application_name = 'tinkex' AND datname = '{name}'",
        )
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            await store.write(sessions.insert, SESSION)
        run(
            f"{database}&options=-cdefault_transaction_read_only%3Doff",
            f"ALTER DATABASE {name} RESET default_transaction_read_only",
        )
        await store.write(sessions.insert, SESSION)
        lost = threading.Event()
        held.on_lost = lost.set
        run(database, "UPDATE tinkex.lease SET number = number + 1")
        assert lost.wait(60), "whoever renews the lease writes again too"


async def test_connections_that_break_at_any_moment_lose_and_double_nothing(database: str) -> None:
    dice, over = random.Random(3), threading.Event()

    def break_connections() -> None:
        while not over.wait(dice.random() * 0.03):
            run(
                database,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'tinkex' AND pid != pg_backend_pid()",
            )

    with opened(database) as (_, store):
        harm = threading.Thread(target=break_connections)
        harm.start()
        try:
            for _ in range(25):
                await asyncio.gather(*(store.write(usage.add, USE) for _ in range(5)))
                await store.read(usage.between, "t", -1.0, 1.0)
        finally:
            over.set()
            harm.join()
        assert [use.amount for use in await store.query(usage.between, "t", -1.0, 1.0)] == [125.0]


def test_a_server_waits_for_a_database_that_is_not_there_yet_and_says_so(database: str) -> None:
    """It answers in a folder that is named elsewhere, once somebody has made that name."""
    told: list[str] = []
    folder = parse_qs(urlsplit(database).query)["host"][0]
    with tempfile.TemporaryDirectory(dir="/tmp") as empty:
        name = Path(empty) / "db"

        def tell(why: str) -> None:
            told.append(why)
            name.symlink_to(folder)

        lease.wait(database.replace(folder, str(name)), "host:1", tell).give_back()
    assert [why.rpartition(": ")[2] for why in told] == ["waiting for the database"]


def test_what_the_database_refuses_for_good_is_not_waited_for(database: str) -> None:
    missing = re.sub(r"test_\w+", "no_such_database", database)
    with pytest.raises(DatabaseError, match="no_such_database"):
        lease.wait(missing, "host:1", lambda why: pytest.fail(why))


def test_a_database_that_cannot_keep_every_text_is_refused_before_anything_is_written(
    postgres: Postgres,
) -> None:
    url = postgres.new_database("ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with pytest.raises(DatabaseError, match="encoding is LATIN1: create one with ENCODING 'UTF8'"):
        lease.take(url)


@pytest.mark.parametrize("url", ["postgresql://nobody:secret@127.0.0.1:1/x"])
def test_a_database_that_is_not_there_is_one_line_without_its_password(url: str) -> None:
    with pytest.raises(DatabaseUnavailable) as refused:
        lease.take(url)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
