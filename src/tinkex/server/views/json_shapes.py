"""Rows as the JSON shapes of the protocol's reading routes. Pure: rows in, dictionaries out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tinkex.server.operations.sampler_gap import SamplerGap
from tinkex.server.storage.database.audit import AuditRow
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.sessions import SessionRow
from tinkex.server.storage.database.usage import GIGABYTE, HOUR, Use
from tinkex.types.tinker_path import CHECKPOINT_KINDS, SAMPLER_WEIGHTS, TRAINING_WEIGHTS

NO_PROJECT = "default"
_REASON = "success"


def moment(seconds: float) -> str:
    """A Unix time as the protocol writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def owner_urn(tenant: str) -> str:
    return f"tinkex:tenant:{tenant}"


def tenant_of(urn: str) -> str:
    return urn.removeprefix("tinkex:tenant:")


def texts(values: Mapping[str, Any] | None) -> dict[str, str] | None:
    """User metadata as clients read it: text to text."""
    if not values:
        return None
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()
    }


def cursor(offset: int, limit: int, total: int) -> dict[str, int]:
    return {"offset": offset, "limit": limit, "total_count": total}


def checkpoint(row: CheckpointRow) -> dict[str, Any]:
    return {
        "checkpoint_id": f"{row.kind}/{row.name}",
        "checkpoint_type": CHECKPOINT_KINDS[row.kind],
        "time": moment(row.created_at),
        "tinker_path": row.path,
        "size_bytes": row.size_bytes,
        "public": row.public,
        "user_metadata": texts(row.user_metadata),
        "expires_at": None if row.expires_at is None else moment(row.expires_at),
        "base_model": row.base_model,
        "step": row.step,
    }


def weights_info(row: CheckpointRow) -> dict[str, Any]:
    return {
        "base_model": row.base_model,
        "is_lora": True,
        "lora_rank": row.rank,
        "train_unembed": row.train_unembed,
        "train_mlp": row.train_mlp,
        "train_attn": row.train_attn,
        "optimizer_config": optimizer_config(row.optimizer),
    }


def optimizer_config(stored: str) -> dict[str, Any]:
    """The configuration as it was asked for, whether its name alone or all of it was stored."""
    if not stored.startswith("{"):
        return {"type": stored}
    config: dict[str, Any] = json.loads(stored)
    return config


def training_run(
    row: RunRow,
    saved: Sequence[CheckpointRow],
    *,
    corrupted: bool = False,
    gap: SamplerGap | None = None,
    is_owner: bool = True,
    session_name: str | None = None,
) -> dict[str, Any]:
    """A run with the newest of its checkpoints (`saved` is newest first). How it fares and what is
    noted about it is its owner's business."""
    private = {"note": row.note, "last_loss": row.loss, "tokens": row.tokens}
    return {
        "training_run_id": row.model_id,
        "base_model": row.base_model,
        "model_owner": owner_urn(row.tenant),
        "is_lora": True,
        "corrupted": corrupted,
        "lora_rank": row.rank,
        "last_request_time": moment(row.requested_at),
        "last_checkpoint": _newest(saved, TRAINING_WEIGHTS),
        "last_sampler_checkpoint": _newest(saved, SAMPLER_WEIGHTS),
        "user_metadata": texts(row.user_metadata),
        "sampler_gap": None if gap is None else gap._asdict(),
        "name": run_name(row, session_name),
        "created_at": moment(row.created_at),
        "state": row.state,
        "step": row.step,
        **(private if is_owner else {}),
    }


def run_name(row: RunRow, session_name: str | None) -> str | None:
    """The name its owner gave it, or the one its script did, if it can be printed on one line."""
    said = row.user_metadata or {}
    for name in (row.name, said.get("name"), said.get("run_name"), session_name):
        if isinstance(name, str) and name.strip() and name.isprintable():
            return name
    return None


def _newest(saved: Iterable[CheckpointRow], kind: str) -> dict[str, Any] | None:
    return next((checkpoint(row) for row in saved if row.kind == kind), None)


def session_summary(row: SessionRow, count: int, size: int) -> dict[str, Any]:
    return {
        "session_id": row.session_id,
        "created_at": moment(row.created_at),
        "owner": owner_urn(row.tenant),
        "project_id": row.project_id or NO_PROJECT,
        "status": session_status(row),
        "checkpoints_count": count,
        "display_name": row.display_name,
        "user_metadata": texts(row.user_metadata),
        "checkpoint_storage_bytes": size,
    }


def session_status(row: SessionRow) -> dict[str, Any]:
    """Expired sessions count as cancelled: nobody finished them, and nothing failed."""
    if row.status == "active":
        return {"type": "active"}
    if row.status == "finished":
        reason = {"type": row.reason or _REASON}
        return {"type": "client_finished", "reason": reason, "detail": row.detail}
    return {"type": "cancelled", "detail": row.detail}


def usage_event(use: Use) -> dict[str, Any]:
    """One hour's use. Costs and rates are unknown here, and said to be."""
    return {
        "bucket_start": moment(use.hour),
        "bucket_end": moment(use.hour + HOUR),
        "base_model": use.source.base_model or None,
        "user_id": owner_urn(use.source.tenant),
        "user_name": use.source.tenant,
        "session_id": use.source.session_id or None,
        "project_id": use.source.project_id or None,
        "estimated_cost_usd": None,
        "effective_rate_usd_per_million_tokens": None,
        "effective_rate_usd_per_gigabyte_month": None,
        "event_info": _event_info(use),
    }


def _event_info(use: Use) -> dict[str, Any]:
    if use.measure == "storage":
        return {"type": "storage", "gigabyte_hours": use.amount}
    if use.measure == "checkpoint":
        return {"type": "checkpoint", "count": round(use.amount)}
    info: dict[str, Any] = {"type": use.measure, "token_count": round(use.amount)}
    return {**info, "cached": use.cached} if use.measure == "sampling_prefill" else info


def storage_item(tenant: str, project_id: str | None, count: int, size: int) -> dict[str, Any]:
    return {
        "project_id": project_id,
        "org_user_urn": owner_urn(tenant),
        "user_email": None,
        "user_name": tenant,
        "checkpoint_count": count,
        "size_bytes": size,
        "size_gigabytes": size / GIGABYTE,
        "estimated_monthly_cost_usd": None,
    }


def audit_entry(row: AuditRow) -> dict[str, Any]:
    return {
        "timestamp": moment(row.at),
        "event": row.event,
        "event_details": dict(row.details),
        "model_id": row.model_id,
        "tinker_path": row.path,
        "purpose": None,
    }
