"""A home for this process, with its rows wherever they are: in its folder, or in PostgreSQL.

For whoever needs a home for a while: a script with `base_url="local"`, a command that tidies up.
`tinkex serve` waits for a database that another server has; these do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tinkex.server.hosting.postgres_option import check_postgres
from tinkex.server.storage.database.transactions import DatabaseError
from tinkex.server.storage.home import Home
from tinkex.server.storage.home_rows import DATABASE_VARIABLE, WrongRows

if TYPE_CHECKING:
    from tinkex.server.storage.database.postgres.lease import Lease


def own_home(root: Path, environ: Mapping[str, str]) -> Home:
    """Take a home. Raises `HomeTaken` if a server has it, `WrongRows` if its rows cannot be
    reached."""
    url = environ.get(DATABASE_VARIABLE)
    if not url:
        return Home(root)
    with contextlib.suppress(WrongRows):
        Home(root).release()  # who has the lock of a home has it, whatever the database says
    held = _lease(url)
    try:
        return Home(root, lease=held)
    except BaseException:
        held.give_back()
        raise


def _lease(url: str) -> Lease:
    check_postgres(DATABASE_VARIABLE, url, WrongRows)
    from tinkex.server.storage.database.postgres import lease

    try:
        return lease.take_from_the_dead(url)
    except DatabaseError as error:
        raise WrongRows(f"{DATABASE_VARIABLE} cannot be used: {error}") from error
    except lease.LeaseHeld as error:
        raise WrongRows(f"{error}: use that server, or stop it first") from error
