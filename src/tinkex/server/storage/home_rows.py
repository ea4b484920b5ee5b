"""Where a home's rows are: in its own file, or in a database that the folder names.

Files and rows belong together: with another home's rows a server would delete every file as
unneeded. So each names the other, and a server that finds a mismatch does not start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinkex.server.storage.home import HomeLease

DATABASE_VARIABLE = "TINKEX_DATABASE"
MARK = "database"
"""A file with the name that the database has for this home."""


class WrongRows(Exception):
    """The home's rows cannot be had: the database is another one's, or cannot be reached. The
    message says what to do."""


def check(root: Path, lease: HomeLease | None) -> None:
    """Raise `WrongRows` if so; a home and a database that are both new become each other's."""
    named = mark_of(root)
    if lease is None:
        if named is not None:
            raise WrongRows(
                f"{root} keeps its rows in PostgreSQL: say where with TINKEX_DATABASE in the "
                "environment (tinkex serve: or --database), or choose another home"
            )
    elif named is None and lease.is_new and not (root / "tinkex.db").exists():
        mark(root, lease.home)
    elif named is None and (root / "tinkex.db").exists():
        raise WrongRows(
            f"{root} keeps its rows in tinkex.db: move them with "
            f"`tinkex home migrate --home {root} --to postgresql://…`, or choose another home"
        )
    elif named != lease.home:
        raise WrongRows(
            f"the files that belong to this database are not in {root}: use the folder its first "
            "server had (on another host, the same shared folder), or another database"
        )


def mark(root: Path, home: str) -> None:
    """Let the home say that its rows are in the database that has this name for it."""
    written = root / f"{MARK}.new"
    written.write_text(home)
    written.rename(root / MARK)


def mark_of(root: Path) -> str | None:
    try:
        return (root / MARK).read_text()
    except FileNotFoundError:
        return None
