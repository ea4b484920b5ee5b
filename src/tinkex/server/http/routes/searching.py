"""A session search as the database is asked."""

from __future__ import annotations

from tinkex.server.storage.database.listing import Search
from tinkex.server.views import json_shapes
from tinkex.types.sessions import (
    AccessibleSearchOwner,
    ClientFinishedSessionStatusQuery,
    SearchOwner,
    SessionSearchCursor,
    SessionSearchRequest,
    SessionStatusQuery,
    UserSearchOwner,
)

_STATUSES = {"active": "active", "cancelled": "expired", "client_finished": "finished"}
"""What the protocol calls a session's end, and what we do. A status `failed` finds nothing:
sessions do not fail here."""


def search(asked: SessionSearchRequest) -> Search:
    accessible, owners = _owner(asked.owner)
    return Search(
        limit=asked.limit,
        accessible=accessible,
        owners=owners,
        session_id=asked.session_id,
        display_name=asked.display_name,
        project_ids=asked.project_ids,
        user_metadata=asked.user_metadata,
        statuses=_statuses(asked.statuses),
        before=_cursor(asked.cursor),
    )


def _owner(owner: SearchOwner) -> tuple[bool, list[str] | None]:
    if isinstance(owner, UserSearchOwner):
        return True, [json_shapes.tenant_of(urn) for urn in owner.owner_urns]
    return isinstance(owner, AccessibleSearchOwner), None


def _statuses(
    given: list[SessionStatusQuery] | None,
) -> list[tuple[str, list[str] | None]] | None:
    if given is None:
        return None
    return [(_STATUSES[each.type], _reasons(each)) for each in given if each.type in _STATUSES]


def _reasons(status: SessionStatusQuery) -> list[str] | None:
    if not isinstance(status, ClientFinishedSessionStatusQuery) or status.reasons is None:
        return None
    return list(status.reasons)


def _cursor(cursor: SessionSearchCursor | None) -> tuple[float, str] | None:
    if cursor is None:
        return None
    return cursor.last_created_at.timestamp(), cursor.last_session_id
