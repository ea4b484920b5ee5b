"""One batch of writes, one commit: every job succeeds or fails alone, all become durable together.

A job is a function of a transaction. Its own exception undoes that job only; a failure of the
commit itself (a full disk) undoes and fails them all. No threads here: `writer` owns the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinkex.server.storage.database.connections import Connection
from tinkex.server.storage.database.transactions import Transaction

Work = Callable[[Transaction], Any]


@dataclass(slots=True)
class Job:
    """A unit of writing and, once its batch is over, its value or its error."""

    work: Work
    value: Any = None
    error: BaseException | None = None


def commit_batch(connection: Connection, jobs: Sequence[Job]) -> None:
    """Run the jobs in order in one transaction. Every job has a value or an error afterwards."""
    try:
        connection.begin()
        run_all(connection, jobs)
        connection.commit()
    except BaseException as error:
        connection.rollback()
        for job in jobs:
            job.error = job.error or connection.translated(error)


def run_all(connection: Connection, jobs: Sequence[Job]) -> None:
    """Within a transaction."""
    if len(jobs) == 1:  # the transaction is its savepoint
        jobs[0].value = jobs[0].work(connection)
        return
    for job in jobs:
        _run(connection, job)


def _run(connection: Connection, job: Job) -> None:
    connection.execute("SAVEPOINT job")
    try:
        job.value = job.work(connection)
    except Exception as error:
        job.error = connection.translated(error)
        connection.execute("ROLLBACK TO job")
    connection.execute("RELEASE job")
