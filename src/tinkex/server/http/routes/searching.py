"""Reads the body of a session search."""

from __future__ import annotations

from typing import Any

from tinkex.server.protocol.fields import Fields
from tinkex.server.refusals import Refusal
from tinkex.server.storage.database.listing import Search
from tinkex.server.views import json_shapes

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
        statuses=_statuses(fields.objects("statuses", limit=_MOST_VALUES)),
        before=_cursor(fields.nested("cursor")),
    )
    fields.finish()
    return search


def _owner(fields: Fields | None) -> tuple[bool, list[str] | None]:
    if fields is None:
        return False, None
    kind = fields.choice("type", ("own", "accessible", "user"))
    urns = fields.texts("owner_urns", limit=_MOST_OWNERS) if kind == "user" else None
    fields.finish()
    if kind != "user":
        return kind == "accessible", None
    if not urns:
        raise Refusal(f"owner.owner_urns needs 1 to {_MOST_OWNERS} entries")
    return True, [json_shapes.tenant_of(urn) for urn in urns]


def _metadata(given: dict[str, Any]) -> dict[str, str]:
    for key, value in given.items():
        if not isinstance(value, str):
            raise Refusal(f"user_metadata.{key[:64]} must be a string")
    return given


def _statuses(given: list[Fields] | None) -> list[tuple[str, list[str] | None]] | None:
    if given is None:
        return None
    return [found for each in given if (found := _status(each)) is not None]


def _status(fields: Fields) -> tuple[str, list[str] | None] | None:
    kind = fields.choice("type", (*_STATUSES, "failed"))
    reasons = fields.choices("reasons", _REASONS)
    fields.finish()
    return None if kind == "failed" else (_STATUSES[kind], reasons)


def _cursor(fields: Fields | None) -> tuple[float, str] | None:
    if fields is None:
        return None
    moment, session_id = fields.moment("last_created_at"), fields.text("last_session_id")
    fields.finish()
    return moment.timestamp(), session_id
