"""The `operations` table: what each run was asked, in `seq_id` order, and what came of it.

A small body or result sits in its row; a large one is a blob whose name the row keeps. The body
goes away once a run can no longer fall back behind it, and with it the routes that were replayed;
the result once it is fetched and old, or too old.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tinkex.server.storage.database.transactions import Transaction

State = Literal["accepted", "done", "failed"]
ResultKind = Literal["json", "protobuf"]

_LIGHT = (
    "request_id, model_id, seq_id, tenant, kind, digest, payload_blob, payload_bytes, state, "
    "result_blob, result_bytes, result_kind, tokens, accepted_at, finished_at, routes_blob, "
    "routes_bytes"
)
_HAS_BODY = "(payload IS NOT NULL OR payload_blob IS NOT NULL)"


@dataclass(frozen=True, slots=True)
class OperationRow:
    """An operation without the bytes of its body and result."""

    request_id: str  # what clients poll by
    model_id: str  # run it changes
    seq_id: int  # its place in the run's order
    tenant: str  # who asked
    kind: str  # one of `operations.kinds`
    digest: bytes  # of its body: the same operation sent again, or another one
    payload_bytes: int  # of its body
    accepted_at: float  # seconds since 1970
    payload_blob: str | None = None  # where a large body lies
    state: State = "accepted"  # whether it has ended, and how
    result_blob: str | None = None  # where a large result lies
    result_bytes: int | None = None  # of its result
    result_kind: ResultKind | None = None  # how the result is encoded
    tokens: int = 0  # trained on
    finished_at: float | None = None  # when its result was committed
    routes_blob: str | None = None  # where the routes lie that it replayed
    routes_bytes: int = 0  # of them


def insert(db: Transaction, row: OperationRow, payload: bytes | None) -> None:
    """Add an accepted operation; `payload` is its body unless a blob holds it."""
    db.execute(
        """INSERT INTO operations (request_id, model_id, seq_id, tenant, kind, digest, payload,
            payload_blob, payload_bytes, state, accepted_at)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'accepted', ?)""",
        (
            row.request_id,
            row.model_id,
            row.seq_id,
            row.tenant,
            row.kind,
            row.digest,
            payload,
            row.payload_blob,
            row.payload_bytes,
            row.accepted_at,
        ),
    )


def get(db: Transaction, request_id: str) -> OperationRow | None:
    row = db.execute(
        f"SELECT {_LIGHT} FROM operations WHERE request_id = ?", (request_id,)
    ).fetchone()
    return None if row is None else OperationRow(**dict(row))


def after(db: Transaction, model_id: str, seq_id: int) -> list[OperationRow]:
    """The operations of a run behind `seq_id`, in order."""
    rows = db.execute(
        f"SELECT {_LIGHT} FROM operations WHERE model_id = ? AND seq_id > ? ORDER BY seq_id",
        (model_id, seq_id),
    )
    return [OperationRow(**dict(row)) for row in rows]


def newest_of_session(db: Transaction, session_id: str, limit: int) -> list[OperationRow]:
    """What was last asked of all runs of a session, the newest first."""
    rows = db.execute(
        f"""SELECT {_LIGHT} FROM operations WHERE model_id IN
            (SELECT model_id FROM runs WHERE session_id = ?) ORDER BY accepted_at DESC LIMIT ?""",
        (session_id, limit),
    )
    return [OperationRow(**dict(row)) for row in rows]


def inline_payload(db: Transaction, request_id: str) -> bytes | None:
    row = db.execute(
        "SELECT payload FROM operations WHERE request_id = ?", (request_id,)
    ).fetchone()
    return None if row is None else row[0]


def inline_result(db: Transaction, request_id: str) -> bytes | None:
    row = db.execute("SELECT result FROM operations WHERE request_id = ?", (request_id,)).fetchone()
    return None if row is None else row[0]


class Finish(NamedTuple):
    """The end of an operation as it is written: its state, result and what it cost."""

    request_id: str  # whose end it is
    state: State  # done or failed
    result_kind: ResultKind  # how the result is read
    result: bytes | None  # if it is small
    result_blob: str | None  # where it lies, if it is large
    result_bytes: int  # either way
    finished_at: float  # on the clock of the server
    tokens: int = 0  # trained on
    routes_blob: str | None = None  # where the routes lie that it replayed
    routes_bytes: int = 0  # of them


def finish(db: Transaction, end: Finish) -> None:
    db.execute(
        """UPDATE operations SET state = ?, result_kind = ?, result = ?, result_blob = ?,
            result_bytes = ?, finished_at = ?, tokens = ?, routes_blob = ?, routes_bytes = ?
            WHERE request_id = ?""",
        (
            end.state,
            end.result_kind,
            end.result,
            end.result_blob,
            end.result_bytes,
            end.finished_at,
            end.tokens,
            end.routes_blob,
            end.routes_bytes,
            end.request_id,
        ),
    )


def mark_all_fetched(db: Transaction, request_ids: Iterable[str], fetched_at: float) -> None:
    db.executemany(
        "UPDATE operations SET fetched_at = ? WHERE request_id = ? AND fetched_at IS NULL",
        [(fetched_at, request_id) for request_id in request_ids],
    )


def drop_payloads(db: Transaction, model_id: str, through: int) -> list[str]:
    """Forget the bodies up to `through`; return the names of the blobs that held some, and the
    routes replayed."""
    where = f"WHERE model_id = ? AND seq_id <= ? AND state != 'accepted' AND {_HAS_BODY}"
    rows = db.execute(
        f"SELECT payload_blob, routes_blob FROM operations {where}", (model_id, through)
    ).fetchall()
    db.execute(
        f"UPDATE operations SET payload = NULL, payload_blob = NULL, routes_blob = NULL {where}",
        (model_id, through),
    )
    return [name for row in rows for name in row if name is not None]


def delete_run(db: Transaction, model_id: str) -> list[str]:
    """Forget all operations of a run; return the names of the blobs that held parts of them."""
    rows = db.execute(
        "SELECT payload_blob, result_blob, routes_blob FROM operations WHERE model_id = ?",
        (model_id,),
    ).fetchall()
    db.execute("DELETE FROM operations WHERE model_id = ?", (model_id,))
    return [name for row in rows for name in row if name is not None]


def kept_through(db: Transaction, model_id: str, through: int, kinds: Collection[str]) -> list[str]:
    """The operations of these kinds of a run up to `through` whose bodies are kept."""
    rows = db.execute(
        f"""SELECT request_id FROM operations WHERE model_id = ? AND seq_id <= ?
            AND kind IN ({_marks(kinds)}) AND {_HAS_BODY}""",
        (model_id, through, *kinds),
    )
    return [request_id for (request_id,) in rows]


def kept(db: Transaction, kinds: Collection[str]) -> list[str]:
    """The operations of these kinds of all runs that may have to be repeated."""
    rows = db.execute(
        f"SELECT request_id FROM operations WHERE kind IN ({_marks(kinds)}) AND {_HAS_BODY}",
        tuple(kinds),
    )
    return [request_id for (request_id,) in rows]


def kept_bytes(db: Transaction, model_id: str, after: int, through: int) -> int:
    """The size of a run's bodies in a range that are kept though a snapshot covers them."""
    (size,) = db.execute(
        f"""SELECT COALESCE(SUM(payload_bytes + routes_bytes), 0) FROM operations
            WHERE model_id = ? AND seq_id > ? AND seq_id <= ? AND {_HAS_BODY}""",
        (model_id, after, through),
    ).fetchone()
    return int(size)


def lacks_body(db: Transaction, model_id: str, after: int, through: int) -> bool:
    """Whether some done operation of a run in a range can no longer be repeated."""
    (count,) = db.execute(
        f"""SELECT COUNT(*) FROM operations WHERE model_id = ? AND seq_id > ? AND seq_id <= ?
            AND state = 'done' AND NOT {_HAS_BODY}""",
        (model_id, after, through),
    ).fetchone()
    return bool(count)


def expire_results(db: Transaction, finished_before: float, fetched_before: float) -> list[str]:
    """Forget results that are old, or fetched a while ago; return the blobs that held some."""
    old = "finished_at < ? AND finished_at IS NOT NULL AND result_kind IS NOT NULL"
    fetched = "fetched_at < ? AND fetched_at IS NOT NULL AND result_kind IS NOT NULL"
    rows = db.execute(
        f"""SELECT request_id, result_blob FROM operations WHERE {old}
            UNION SELECT request_id, result_blob FROM operations WHERE {fetched}""",
        (finished_before, fetched_before),
    ).fetchall()
    db.executemany(
        """UPDATE operations SET result = NULL, result_blob = NULL, result_kind = NULL
            WHERE request_id = ?""",
        [(row["request_id"],) for row in rows],
    )
    return [row["result_blob"] for row in rows if row["result_blob"] is not None]


def accepted_blobs(db: Transaction) -> list[tuple[str, str]]:
    """(request id, blob) of every accepted operation whose body is a blob."""
    rows = db.execute(
        """SELECT request_id, payload_blob FROM operations
            WHERE state = 'accepted' AND payload_blob IS NOT NULL"""
    )
    return [(request_id, blob) for request_id, blob in rows]


def done_blobs(db: Transaction) -> list[tuple[str, str]]:
    """(request id, blob) of the result, and of the routes replayed, of every done operation that no
    snapshot covers."""
    rows = db.execute(
        f"""SELECT request_id, result_blob, routes_blob FROM operations AS done WHERE state = 'done'
            AND {_HAS_BODY} AND seq_id > COALESCE(
            (SELECT MAX(seq_id) FROM snapshots WHERE model_id = done.model_id), -1)"""
    )
    return [(request, blob) for request, *blobs in rows for blob in blobs if blob is not None]


def reopen_all(db: Transaction, request_ids: Iterable[str]) -> None:
    """Make done operations accepted again: their results never reached the disk, nor anyone."""
    db.executemany(
        """UPDATE operations SET state = 'accepted', result_blob = NULL, result_kind = NULL,
            result_bytes = NULL, finished_at = NULL, routes_blob = NULL, routes_bytes = 0
            WHERE request_id = ?""",
        [(request_id,) for request_id in request_ids],
    )


def forget_all(db: Transaction, request_ids: Iterable[str]) -> None:
    for request_id in request_ids:
        forget(db, request_id)


def forget_old(db: Transaction, before: float) -> None:
    """Remove what was asked of runs that are over and were last asked something long ago."""
    db.execute(
        """DELETE FROM operations WHERE payload_blob IS NULL AND result_blob IS NULL AND model_id IN
            (SELECT model_id FROM runs WHERE state = 'ended' AND requested_at < ?)""",
        (before,),
    )


def forget(db: Transaction, request_id: str) -> None:
    """Remove an operation that was never acknowledged."""
    db.execute("DELETE FROM operations WHERE request_id = ?", (request_id,))


def blob_names(db: Transaction) -> set[str]:
    """Every blob the table still needs."""
    rows = db.execute(
        """SELECT payload_blob FROM operations WHERE payload_blob IS NOT NULL
            UNION SELECT result_blob FROM operations WHERE result_blob IS NOT NULL
            UNION SELECT routes_blob FROM operations WHERE routes_blob IS NOT NULL"""
    )
    return {name for (name,) in rows}


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))
