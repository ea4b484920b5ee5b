"""What a database gives the store: connections that read, and one that commits batches."""

from __future__ import annotations

from typing import Protocol

from tinkex.server.storage.database.transactions import Transaction


class Connection(Transaction, Protocol):
    """One connection, used by one thread at a time."""

    def begin(self) -> None:
        """Start a transaction in which this connection may write."""

    def commit(self) -> None:
        """Make it durable."""

    def rollback(self) -> None:
        """Undo it; nothing if there is none."""

    def close(self) -> None: ...

    def translated(self, error: BaseException) -> BaseException:
        """An error of the driver as one of ours; any other as it is."""

    def recovered(self, error: BaseException) -> bool:
        """Whether the connection was lost with this error and is there again, so that a reading
        can be repeated."""

    def version(self) -> int:
        """How many migrations were made."""

    def set_version(self, number: int) -> None: ...

    def define(self, statement: str) -> None:
        """Run a statement of a migration, which is written in SQLite's words."""

    def problems(self) -> list[str]:
        """What the database finds wrong with its own files."""
