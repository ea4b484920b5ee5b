"""Reads the body of a session search."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tinkex.server import presentation
from tinkex.server.fields import Fields
from tinkex.server.refusals import Refusal
from tinkex.server.store.listing import Search

_MOST_FOUND = 200
_MOST_OWNERS = 10
_MOST_VALUES = 100
_STATUSES = {"active": "active", "cancelled": "expired", "client_finished": "finished"}
_REASONS = ("success", "errored", "interrupted")


def read(fields: Fields) -> Search:
    """The search a body asks for. A status `failed` finds nothing: sessions do not fail here."""
    accessible, owners = _owner(fields.nested("owner"))
    search = Search(
        limit=fields.integer("limit", low=1, high=_MOST_FOUND, default=50),
        accessible=accessible,
        owners=owners,
        session_id=fields.optional_text("session_id"),
        display_name=fields.optional_text("display_name"),
        project_ids=fields.texts("project_ids", limit=_MOST_VALUES),
        user_metadata=_metadata(fields.mapping("user_metadata") or {}),
        statuses=_statuses(fields.items("statuses", limit=_MOST_VALUES)),
        before=_cursor(fields.nested("cursor")),
    )
    fields.finish()
    return search


def _owner(fields: Fields | None) -> tuple[bool, list[str] | None]:
    if fields is None:
        return False, None
    kind = fields.raw("type")
    urns = fields.texts("owner_urns", limit=_MOST_OWNERS) if kind == "user" else None
    fields.finish()
    if kind == "user":
        if not urns:
            raise Refusal(f"owner.owner_urns needs 1 to {_MOST_OWNERS} entries")
        return True, [presentation.tenant_of(urn) for urn in urns]
    if kind not in ("own", "accessible"):
        raise Refusal("owner.type must be own, accessible or user")
    return kind == "accessible", None


def _metadata(given: dict[str, Any]) -> dict[str, str]:
    for key, value in given.items():
        if not isinstance(value, str):
            raise Refusal(f"user_metadata.{key[:64]} must be a string")
    return given


def _statuses(given: list[Any] | None) -> list[tuple[str, list[str] | None]] | None:
    if given is None:
        return None
    return [found for each in given if (found := _status(each)) is not None]


def _status(given: Any) -> tuple[str, list[str] | None] | None:
    if not isinstance(given, dict):
        raise Refusal("statuses must hold objects")
    fields = Fields(given, "statuses[].")
    kind, reasons = fields.raw("type"), fields.texts("reasons", limit=len(_REASONS))
    fields.finish()
    if kind == "failed":
        return None
    if kind not in _STATUSES or any(reason not in _REASONS for reason in reasons or ()):
        known = ", ".join([*_STATUSES, "failed"])
        raise Refusal(f"statuses[].type must be one of {known}, reasons of {', '.join(_REASONS)}")
    return _STATUSES[kind], reasons


def _cursor(fields: Fields | None) -> tuple[float, str] | None:
    if fields is None:
        return None
    text, session_id = fields.text("last_created_at"), fields.text("last_session_id")
    fields.finish()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Refusal("cursor.last_created_at must be an ISO 8601 time") from None
    if moment.tzinfo is None:
        raise Refusal("cursor.last_created_at needs an offset from UTC")
    return moment.timestamp(), session_id
