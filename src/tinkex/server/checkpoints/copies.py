"""The finished session and run that a copied checkpoint lives in, so that every route knows it."""

from __future__ import annotations

from tinkex.server.storage.database import runs, sessions
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.transactions import Transaction


def add_run(connection: Transaction, row: CheckpointRow, source: str) -> None:
    """Create the session and run of `row`, a copy of the checkpoint at `source`."""
    session = sessions.SessionRow(
        session_id=row.session_id,
        tenant=row.tenant,
        created_at=row.created_at,
        seen_at=row.created_at,
        project_id=row.project_id,
        display_name=f"copy of {source}",
    )
    sessions.insert(connection, session)
    sessions.end(connection, row.session_id, "finished", "success", None, row.created_at)
    runs.insert(
        connection,
        RunRow(
            model_id=row.model_id,
            session_id=row.session_id,
            tenant=row.tenant,
            base_model=row.base_model,
            optimizer=row.optimizer,
            created_at=row.created_at,
            requested_at=row.created_at,
            rank=row.rank,
            train_attn=row.train_attn,
            train_mlp=row.train_mlp,
            train_unembed=row.train_unembed,
            user_metadata=None,
            state="ended",
        ),
    )
