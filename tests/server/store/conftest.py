"""The tables' tests run on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.postgres import Postgres
from tinkex.server.storage.database.connections import Connection
from tinkex.server.storage.database.migrations import migrate
from tinkex.server.storage.database.postgres.connection import PostgresConnection
from tinkex.server.storage.database.sqlite import connect


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connection]:
    """A database with tables and nothing in them."""
    connection: Connection
    if request.param == "sqlite":
        connection = connect(tmp_path / "x.db")
    else:
        server: Postgres = request.getfixturevalue("postgres")
        connection = PostgresConnection(server.new_database())
        connection.found()
    migrate(connection)
    yield connection
    connection.close()
