"""Group commit on PostgreSQL: a batch goes out as one pipeline, in one or two round trips.

Each batch is fenced by the server's lease and numbered. When one of its statements fails, the batch
is undone and run again statement by statement, so that only the job that is to blame fails. When
the connection breaks, the batch is run again on the next one, unless its number shows that it was
committed: so nothing is lost and nothing counts twice. Jobs change nothing but the database, or
they could not be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg

from tinkex.server.storage.database.commit import Job, run_all
from tinkex.server.storage.database.postgres.connection import PostgresConnection
from tinkex.server.storage.database.transactions import DatabaseError, Row

_LEASE_LOST = "TX001"


class LeaseLost(DatabaseError):
    """Another server has taken over: this one writes no more."""


class PipelinedWriting:
    """The writing side of a lease's holder; `on_lost` is told when another has taken over."""

    def __init__(
        self, connection: PostgresConnection, lease: int, on_lost: Callable[[], object]
    ) -> None:
        self._connection, self._lease = connection, lease
        self._on_lost = on_lost
        self._batch = 0
        self._finishing = False

    def commit(self, jobs: Sequence[Job]) -> None:
        """Every job has a value or an error afterwards."""
        self._batch += 1
        try:
            while not self._is_committed(jobs):
                pass
        except BaseException as error:
            ours = self._connection.translated(error)
            if _is_loss(error):
                self._on_lost()
                ours = LeaseLost("another server has taken over this database")
            for job in jobs:
                job.error = job.error or ours

    def _is_committed(self, jobs: Sequence[Job]) -> bool:
        """False where it has to be tried again."""
        self._finishing = False
        try:
            self._try(jobs)
        except BaseException as error:
            if not self._connection.is_lost(error):
                self._undo()
            return self._found_committed(error)
        return True

    def _found_committed(self, error: BaseException) -> bool:
        """After an error: raise it, unless it is that the connection broke, and is there again."""
        while self._is_back(error):
            try:
                return self._finishing and self._was_committed()
            except psycopg.Error as another:
                error = another
        raise error

    def _try(self, jobs: Sequence[Job]) -> None:
        """In one go; if the database refuses anything, statement by statement."""
        try:
            with self._connection.driver.pipeline():
                done = self._run(jobs)
            if done.statusmessage != "COMMIT":
                raise psycopg.errors.InFailedSqlTransaction("the batch was undone")
        except psycopg.Error as error:
            if self._connection.is_lost(error) or _is_loss(error):
                raise
            self._connection.rollback()
            self._run(jobs)

    def _run(self, jobs: Sequence[Job]) -> psycopg.Cursor[Row]:
        for job in jobs:
            job.value, job.error = None, None
        connection = self._connection
        connection.begin()
        connection.execute("SELECT fence(?, ?)", (self._lease, self._batch))
        run_all(connection, jobs)
        self._finishing = True
        return connection.driver.execute("COMMIT")

    def _undo(self) -> None:
        try:
            self._connection.rollback()
        except psycopg.Error:
            self._connection.driver.close()

    def _is_back(self, error: BaseException) -> bool:
        """Whether the connection broke and is there again. While it is not known whether a batch
        was committed, nothing else can be done than to wait for that."""
        while self._connection.is_lost(error):
            if self._connection.recovered(error):
                return True
            if not self._finishing or self._connection.is_closing:
                return False
        return False

    def _was_committed(self) -> bool:
        found = self._connection.execute(
            "SELECT 1 FROM lease WHERE number = ? AND batch = ?", (self._lease, self._batch)
        )
        return found.fetchone() is not None


def _is_loss(error: BaseException) -> bool:
    return isinstance(error, psycopg.Error) and error.diag.sqlstate == _LEASE_LOST
