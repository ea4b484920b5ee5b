"""What the tables need of a database: a transaction to run statements in, and its errors.

The SQL of the table modules is the part that SQLite and PostgreSQL share, with values as `?` or
`:name`. Code outside this folder composes functions of the table modules in a transaction. It
neither looks into one nor writes SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Row(Protocol):
    """A row: its values in order, by number or by name; `dict` takes it."""

    def keys(self) -> Iterable[str]: ...

    def __getitem__(self, key: Any, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class Rows(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Transaction(Protocol):
    """Runs statements; what they change is durable once the transaction is committed."""

    def execute(self, sql: str, values: Values = ..., /) -> Rows: ...

    def executemany(self, sql: str, values: Iterable[Values], /) -> object: ...


class DatabaseError(Exception):
    """The database refused, and undid what the transaction had done."""


class DatabaseUnavailable(DatabaseError):
    """The disk or the database cannot do it now: nothing is wrong with what was asked."""
