"""The requests this server reads: the protocol's types, with the limits that are its own.

A field's name, kind and default stand with its type; here is how much of it this server takes,
what it does without though the type asks for it, and what it cannot do without.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tinkex.server.protocol.limited import (
    FAR,
    at_most,
    between,
    limited,
    otherwise,
    read_by,
)
from tinkex.server.protocol.reading import Reader
from tinkex.types.checkpoints import CopyWeightsRequest
from tinkex.types.futures import (
    FutureRetrieveRequest,
    FuturesRetrieveRequest,
    SamplingSessionFuturesTarget,
)
from tinkex.types.models import GetInfoRequest
from tinkex.types.sampling import CreateSamplingSessionRequest, JoinSamplingSessionRequest
from tinkex.types.service import ClientConfigRequest
from tinkex.types.sessions import (
    CreateSessionRequest,
    SessionHeartbeatRequest,
    SessionSearchCursor,
    SessionSearchRequest,
)
from tinkex.types.small_requests import (
    CancelFutureRequest,
    CheckpointTtlRequest,
    FinishSessionRequest,
    RunNameRequest,
    RunNoteRequest,
    SessionProjectRequest,
    WeightsInfoRequest,
)

NAME_LIMIT = 200
NOTE_LIMIT = 4000
_LABEL = at_most(256)
_COUNT = between(0, FAR)
_VALUES = at_most(100)


def _moment(value: Any) -> datetime:
    """A time with its offset from UTC, written as text."""
    try:
        found = datetime.fromisoformat(value)
        if found.tzinfo is None:
            raise ValueError("needs an offset from UTC")
        return found.astimezone(UTC)
    except (TypeError, OverflowError):
        raise ValueError("must be an ISO 8601 time with its offset from UTC") from None


# ---- the server itself

CLIENT_CONFIG = Reader(limited(ClientConfigRequest, sdk_version=otherwise("")), is_open=True)
"""What clients say about themselves is read by nobody."""

# ---- sessions

CREATE_SESSION = Reader(
    limited(
        CreateSessionRequest,
        tags=at_most(100) | otherwise([]),
        user_metadata=otherwise(None),
        sdk_version=at_most(64) | otherwise(""),
        project_id=_LABEL,
        display_name=_LABEL,
    )
)
SESSION_HEARTBEAT = Reader(limited(SessionHeartbeatRequest))
FINISH_SESSION = Reader(limited(FinishSessionRequest))
SESSION_PROJECT = Reader(limited(SessionProjectRequest, project_id=_LABEL))

limited(SessionSearchCursor, last_created_at=read_by(_moment))
SEARCH_SESSIONS = Reader(limited(SessionSearchRequest, project_ids=_VALUES, statuses=_VALUES))

# ---- runs and their checkpoints

GET_INFO = Reader(limited(GetInfoRequest))
RUN_NAME = Reader(limited(RunNameRequest, name=at_most(NAME_LIMIT)))
RUN_NOTE = Reader(limited(RunNoteRequest, note=at_most(NOTE_LIMIT)))
WEIGHTS_INFO = Reader(limited(WeightsInfoRequest))
CHECKPOINT_TTL = Reader(limited(CheckpointTtlRequest))
COPY_WEIGHTS = Reader(
    limited(CopyWeightsRequest),
    without=dict.fromkeys(
        ("session_id", "model_seq_id"), "is not taken: a copy gets a session and run of its own"
    ),
)

# ---- samplers and futures

CREATE_SAMPLER = Reader(limited(CreateSamplingSessionRequest, sampling_session_seq_id=_COUNT))
JOIN_SAMPLER = Reader(limited(JoinSamplingSessionRequest))
RETRIEVE_FUTURE = Reader(limited(FutureRetrieveRequest))
CANCEL_FUTURE = Reader(limited(CancelFutureRequest))
limited(SamplingSessionFuturesTarget, cloned_sampler_id=_COUNT)
RETRIEVE_FUTURES = Reader(limited(FuturesRetrieveRequest, prev_cursor=_COUNT))
