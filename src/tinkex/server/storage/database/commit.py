"""One batch of writes, one commit: every job succeeds or fails alone, all become durable together.

A job is a function of the connection. Its own exception undoes that job only; a failure of the
commit itself (a full disk) undoes and fails them all. No threads here: `writer` owns the thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Work = Callable[[sqlite3.Connection], Any]


@dataclass(slots=True)
class Job:
    """A unit of writing and, once its batch is over, its value or its error."""

    work: Work
    value: Any = None
    error: BaseException | None = None


def commit_batch(connection: sqlite3.Connection, jobs: Sequence[Job]) -> None:
    """Run the jobs in order in one transaction. Every job has a value or an error afterwards."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        if len(jobs) == 1:  # the transaction is its savepoint
            jobs[0].value = jobs[0].work(connection)
        else:
            for job in jobs:
                _run(connection, job)
        connection.execute("COMMIT")
    except BaseException as error:
        _abandon(connection)
        for job in jobs:
            job.error = job.error or error


def _run(connection: sqlite3.Connection, job: Job) -> None:
    connection.execute("SAVEPOINT job")
    try:
        job.value = job.work(connection)
    except Exception as error:
        job.error = error
        connection.execute("ROLLBACK TO job")
    connection.execute("RELEASE job")


def _abandon(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
