"""The database's shape, as the list of steps that made it. A step never changes once released.

Step N takes version N-1 to version N; the database remembers which. Opening a database newer than
this list is refused, so that an old server never writes into a shape it does not know. Steps are in
SQLite's words; another database reads them as its own.
"""

from __future__ import annotations

from collections.abc import Callable

from tinkex.server.storage.database.connections import Connection


class NewerDatabase(RuntimeError):
    """The file was written by a later release than this one."""


def migrate(connection: Connection) -> int:
    """Bring the database to the newest version, each step in its own transaction; return it."""
    version = connection.version()
    if version > len(MIGRATIONS):
        raise NewerDatabase(
            f"the database is at version {version}, this release knows {len(MIGRATIONS)}: "
            "use the release that wrote it, or a newer one"
        )
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.begin()
        try:
            step(connection)
            connection.set_version(number)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
    return len(MIGRATIONS)


def _sessions_and_runs(connection: Connection) -> None:
    _run(
        connection,
        """CREATE TABLE sessions (
            session_id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created_at REAL NOT NULL,
            seen_at REAL NOT NULL, tags TEXT NOT NULL, user_metadata TEXT NOT NULL,
            sdk_version TEXT, project_id TEXT, display_name TEXT, idempotency_key TEXT,
            status TEXT NOT NULL DEFAULT 'active', reason TEXT, detail TEXT, ended_at REAL)""",
        "CREATE INDEX sessions_by_tenant ON sessions (tenant, created_at)",
        """CREATE UNIQUE INDEX sessions_by_key ON sessions (tenant, idempotency_key)
            WHERE idempotency_key IS NOT NULL""",
        """CREATE TABLE runs (
            model_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, tenant TEXT NOT NULL,
            base_model TEXT NOT NULL, rank INTEGER, seed INTEGER, train_attn INTEGER,
            train_mlp INTEGER, train_unembed INTEGER, optimizer TEXT NOT NULL,
            user_metadata TEXT, created_at REAL NOT NULL, requested_at REAL NOT NULL,
            state TEXT NOT NULL)""",
        "CREATE INDEX runs_by_tenant ON runs (tenant, created_at)",
        "CREATE INDEX runs_by_session ON runs (session_id)",
    )


def _operations_and_snapshots(connection: Connection) -> None:
    _run(
        connection,
        """CREATE TABLE operations (
            request_id TEXT PRIMARY KEY, model_id TEXT NOT NULL, seq_id INTEGER NOT NULL,
            tenant TEXT NOT NULL, kind TEXT NOT NULL, digest BLOB NOT NULL,
            payload BLOB, payload_blob TEXT, payload_bytes INTEGER NOT NULL,
            state TEXT NOT NULL, result BLOB, result_blob TEXT, result_bytes INTEGER,
            result_kind TEXT, tokens INTEGER NOT NULL DEFAULT 0,
            accepted_at REAL NOT NULL, finished_at REAL, fetched_at REAL,
            UNIQUE (model_id, seq_id))""",
        "CREATE INDEX operations_by_finish ON operations (finished_at)",
        """CREATE TABLE snapshots (
            model_id TEXT PRIMARY KEY, seq_id INTEGER NOT NULL, folder TEXT NOT NULL,
            step INTEGER NOT NULL, size_bytes INTEGER NOT NULL, created_at REAL NOT NULL)""",
    )


def _checkpoints_and_samplers(connection: Connection) -> None:
    _run(
        connection,
        """CREATE TABLE checkpoints (
            path TEXT PRIMARY KEY, model_id TEXT NOT NULL, session_id TEXT NOT NULL,
            tenant TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, folder TEXT NOT NULL,
            base_model TEXT NOT NULL, rank INTEGER NOT NULL, train_attn INTEGER NOT NULL,
            train_mlp INTEGER NOT NULL, train_unembed INTEGER NOT NULL, optimizer TEXT NOT NULL,
            step INTEGER NOT NULL, size_bytes INTEGER NOT NULL, public INTEGER NOT NULL DEFAULT 0,
            user_metadata TEXT, project_id TEXT, created_at REAL NOT NULL, expires_at REAL)""",
        "CREATE INDEX checkpoints_by_tenant ON checkpoints (tenant, created_at)",
        "CREATE INDEX checkpoints_by_run ON checkpoints (model_id, created_at)",
        "CREATE INDEX checkpoints_by_folder ON checkpoints (folder)",
        """CREATE TABLE samplers (
            sampler_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, tenant TEXT NOT NULL,
            base_model TEXT NOT NULL, model_path TEXT, folder TEXT, created_at REAL NOT NULL,
            clones INTEGER NOT NULL DEFAULT 0)""",
        "CREATE INDEX samplers_by_session ON samplers (session_id)",
        "CREATE INDEX samplers_by_folder ON samplers (folder)",
        """CREATE TABLE sample_windows (
            sampler_id TEXT NOT NULL, clone INTEGER NOT NULL, low INTEGER NOT NULL,
            high INTEGER NOT NULL, PRIMARY KEY (sampler_id, clone))""",
        """CREATE TABLE losses (
            loss_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, tenant TEXT NOT NULL,
            name TEXT NOT NULL, spec TEXT NOT NULL, digest BLOB NOT NULL,
            created_at REAL NOT NULL)""",
    )


def _usage_and_audit(connection: Connection) -> None:
    _run(
        connection,
        "ALTER TABLE checkpoints ADD COLUMN digest TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE checkpoints ADD COLUMN accrued_at REAL NOT NULL DEFAULT 0",
        """CREATE INDEX checkpoints_by_expiry ON checkpoints (expires_at)
            WHERE expires_at IS NOT NULL""",
        """CREATE TABLE copies (
            tenant TEXT NOT NULL, idempotency_key TEXT NOT NULL, path TEXT NOT NULL,
            PRIMARY KEY (tenant, idempotency_key))""",
        """CREATE TABLE usage (
            hour INTEGER NOT NULL, tenant TEXT NOT NULL, session_id TEXT NOT NULL,
            project_id TEXT NOT NULL, base_model TEXT NOT NULL, measure TEXT NOT NULL,
            cached INTEGER NOT NULL, amount REAL NOT NULL,
            PRIMARY KEY (tenant, hour, session_id, project_id, base_model, measure, cached))
            WITHOUT ROWID""",
        """CREATE TABLE audit (
            id INTEGER PRIMARY KEY, at REAL NOT NULL, tenant TEXT NOT NULL,
            category TEXT NOT NULL, event TEXT NOT NULL, details TEXT NOT NULL,
            model_id TEXT, path TEXT)""",
        "CREATE INDEX audit_by_tenant ON audit (tenant, at)",
    )


def _fetched_results(connection: Connection) -> None:
    _run(
        connection,
        """CREATE INDEX operations_by_fetch ON operations (fetched_at)
            WHERE fetched_at IS NOT NULL AND result_kind IS NOT NULL""",
        """CREATE INDEX operations_with_results ON operations (finished_at)
            WHERE finished_at IS NOT NULL AND result_kind IS NOT NULL""",
        "DROP INDEX operations_by_finish",
    )


def _two_hashed_snapshots(connection: Connection) -> None:
    _run(
        connection,
        "ALTER TABLE snapshots RENAME TO single_snapshots",
        """CREATE TABLE snapshots (
            model_id TEXT NOT NULL, seq_id INTEGER NOT NULL, folder TEXT NOT NULL,
            step INTEGER NOT NULL, size_bytes INTEGER NOT NULL, created_at REAL NOT NULL,
            digest TEXT NOT NULL, PRIMARY KEY (model_id, seq_id))""",
        """INSERT INTO snapshots SELECT model_id, seq_id, folder, step, size_bytes, created_at, ''
            FROM single_snapshots""",
        "DROP TABLE single_snapshots",
    )


def _described_runs(connection: Connection) -> None:
    """What was known before is counted from what is left of it."""
    _run(
        connection,
        "ALTER TABLE runs ADD COLUMN name TEXT",
        "ALTER TABLE runs ADD COLUMN note TEXT",
        "ALTER TABLE runs ADD COLUMN step INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE runs ADD COLUMN loss REAL",
        "ALTER TABLE runs ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE runs ADD COLUMN ended_at REAL",
        """UPDATE runs SET
            tokens = COALESCE((SELECT SUM(o.tokens) FROM operations o
                WHERE o.model_id = runs.model_id AND o.kind = 'forward_backward'), 0),
            step = MAX(
                (SELECT COUNT(*) FROM operations o WHERE o.model_id = runs.model_id
                    AND o.kind = 'optim_step' AND o.state = 'done'),
                COALESCE((SELECT MAX(step) FROM checkpoints c
                    WHERE c.model_id = runs.model_id), 0),
                COALESCE((SELECT MAX(step) FROM snapshots s
                    WHERE s.model_id = runs.model_id), 0))""",
    )


def _recorded_runs(connection: Connection) -> None:
    """Histories, kept samples, and where runs and samplers come from."""
    _run(
        connection,
        "ALTER TABLE runs ADD COLUMN parent TEXT",
        "ALTER TABLE samplers ADD COLUMN model_id TEXT",
        """CREATE TABLE points (
            owner TEXT NOT NULL, n INTEGER NOT NULL, seq_id INTEGER NOT NULL,
            step INTEGER NOT NULL, at REAL NOT NULL, done INTEGER NOT NULL, data TEXT NOT NULL,
            PRIMARY KEY (owner, n)) WITHOUT ROWID""",
        """CREATE TABLE curves (
            owner TEXT NOT NULL, metric TEXT NOT NULL, first INTEGER NOT NULL,
            last INTEGER NOT NULL, level INTEGER NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (owner, metric, first))""",
        """CREATE TABLE kept_samples (
            id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, model_id TEXT,
            base_model TEXT NOT NULL, at REAL NOT NULL, data BLOB NOT NULL)""",
        "CREATE INDEX kept_samples_by_source ON kept_samples (tenant, model_id, base_model, id)",
    )


def _replayed_routes(connection: Connection) -> None:
    """Which experts an operation's tokens were sent to, where that was not the router's choice."""
    _run(
        connection,
        "ALTER TABLE operations ADD COLUMN routes_blob TEXT",
        "ALTER TABLE operations ADD COLUMN routes_bytes INTEGER NOT NULL DEFAULT 0",
    )


def _run(connection: Connection, *statements: str) -> None:
    for statement in statements:
        connection.define(statement)


MIGRATIONS: list[Callable[[Connection], None]] = [
    _sessions_and_runs,
    _operations_and_snapshots,
    _checkpoints_and_samplers,
    _usage_and_audit,
    _fetched_results,
    _two_hashed_snapshots,
    _described_runs,
    _recorded_runs,
    _replayed_routes,
]
