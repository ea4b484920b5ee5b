"""Moves a home's data to a team's stores: one step for each kind of store, each resumable."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tinkex.server.hosting.own_home import own_home
from tinkex.server.hosting.postgres_option import check_postgres
from tinkex.server.storage.database.transactions import DatabaseError
from tinkex.server.storage.home import Home
from tinkex.server.storage.home_rows import mark_of
from tinkex.server.storage.manifest import CorruptCheckpoint

Tell = Callable[[str], None]


class CannotMove(Exception):
    """Why a home stays where it is, in one line with the fix."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a step: what is where now, how much of it, and how it was compared."""

    what: str
    to: str
    count: int
    checked: str


def move(
    root: Path,
    objects: str | None,
    database: str | None,
    tell: Tell,
    environ: Mapping[str, str] | None = None,
) -> list[Step]:
    """Move a home that no server has, files first: they are found by its rows, which may be in the
    environment's database already. Raises `HomeTaken`, `WrongRows` or `CannotMove`."""
    home = Home(root) if mark_of(root) is None else _of_a_database(root, database, environ)
    try:
        steps = [] if objects is None else [_files(home, objects, tell)]
        return steps if database is None else [*steps, _rows(home, database, tell)]
    finally:
        home.release()


def _of_a_database(root: Path, wanted: str | None, environ: Mapping[str, str] | None) -> Home:
    if wanted is not None:
        raise CannotMove(f"{root} keeps its rows in PostgreSQL already: leave --to out")
    return own_home(root, os.environ if environ is None else environ)


def _files(home: Home, url: str, tell: Tell) -> Step:
    from tinkex.server.storage.objects.migration import Migration
    from tinkex.server.storage.objects.store import BadStore

    try:
        moved = Migration(home, url, tell).run()
    except (BadStore, CorruptCheckpoint) as error:
        raise CannotMove(str(error)) from error
    checked = f"{moved.present} were there; {moved.size_bytes} bytes read back"
    return Step("objects", moved.url, moved.moved, checked)


def _rows(home: Home, url: str, tell: Tell) -> Step:
    check_postgres("--to", url, CannotMove)
    from tinkex.server.storage.database.postgres.lease import LeaseHeld
    from tinkex.server.storage.database.postgres.moving import NotMoved, move_rows

    try:
        moved = move_rows(home.root, url, tell)
    except (NotMoved, LeaseHeld, DatabaseError) as error:
        raise CannotMove(str(error)) from error
    return Step("rows", "PostgreSQL", moved.rows, f"the same on both sides, sha256 {moved.sha256}")
