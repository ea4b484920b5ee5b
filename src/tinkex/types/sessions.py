"""Sessions: opening one, keeping it alive, how it ended, and searching for old ones."""

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AwareDatetime, Field

from tinkex.types.strictness import Lenient, Strict, defaults


class CreateSessionRequest(Strict):
    """Open a session."""

    tags: list[str]
    user_metadata: dict[str, Any] | None
    sdk_version: str
    project_id: str | None = None
    display_name: str | None = None
    type: Literal["create_session"] = "create_session"


class CreateSessionResponse(Lenient):
    """The id of the new session, and messages for its user."""

    type: Literal["create_session"] = "create_session"
    info_message: str | None = None
    warning_message: str | None = None
    error_message: str | None = None
    session_id: str


class SessionHeartbeatRequest(Strict):
    """Says that a session's client is alive."""

    session_id: str
    type: Literal["session_heartbeat"] = "session_heartbeat"


class SessionHeartbeatResponse(Lenient):
    """The server knows now that the client is alive."""

    type: Literal["session_heartbeat"] = "session_heartbeat"


class GetSessionResponse(Lenient):
    """The runs and samplers of a session."""

    training_run_ids: list[str]
    sampler_ids: list[str]
    user_metadata: dict[str, str] | None = None
    display_name: str | None = None


class ListSessionsResponse(Lenient):
    """A page of session ids."""

    sessions: list[str]


# ---- how a session stands


class SessionActive(Lenient):
    """A session that is still open."""

    type: Literal["active"] = "active"


class SessionCancelled(Lenient):
    """A session that was cancelled."""

    type: Literal["cancelled"] = "cancelled"
    detail: str | None = None


ClientSessionFinishReasonType: TypeAlias = Literal["success", "errored", "interrupted"]


class ClientSessionFinishSuccess(Lenient):
    """The program did what it was to do."""

    type: Literal["success"] = "success"


class ClientSessionFinishErrored(Lenient):
    """The program ended with an error."""

    type: Literal["errored"] = "errored"


class ClientSessionFinishInterrupted(Lenient):
    """The program was interrupted."""

    type: Literal["interrupted"] = "interrupted"


ClientSessionFinishReason: TypeAlias = Annotated[
    ClientSessionFinishSuccess | ClientSessionFinishErrored | ClientSessionFinishInterrupted,
    Field(discriminator="type"),
]


class ClientSessionFinished(Lenient):
    """A session that its client ended, and why."""

    type: Literal["client_finished"] = "client_finished"
    reason: ClientSessionFinishReason
    detail: str | None = None


class SessionFailedRequestReason(Lenient):
    """A request of the session failed."""

    type: Literal["request"] = "request"
    request_id: str
    request_type: str


class SessionFailedTrainingRunReason(Lenient):
    """A run of the session failed."""

    type: Literal["training_run"] = "training_run"
    training_run_id: str


class SessionFailedSamplingSessionReason(Lenient):
    """A sampler of the session failed."""

    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str


SessionFailedReason: TypeAlias = Annotated[
    SessionFailedRequestReason
    | SessionFailedTrainingRunReason
    | SessionFailedSamplingSessionReason,
    Field(discriminator="type"),
]


class SessionFailed(Lenient):
    """A session that failed, and why."""

    type: Literal["failed"] = "failed"
    category: Literal["user", "internal"]
    reason: SessionFailedReason
    message: str


SessionStatus: TypeAlias = Annotated[
    SessionFailed | SessionCancelled | ClientSessionFinished | SessionActive,
    Field(discriminator="type"),
]


# ---- searching


class OwnSearchOwner(Strict):
    """Search what the caller owns."""

    type: Literal["own"] = "own"


class AccessibleSearchOwner(Strict):
    """Search what the caller may read."""

    type: Literal["accessible"] = "accessible"


class UserSearchOwner(Strict):
    """Search what a named user owns."""

    type: Literal["user"] = "user"
    owner_urns: list[str] = Field(min_length=1, max_length=10)


SearchOwner: TypeAlias = OwnSearchOwner | AccessibleSearchOwner | UserSearchOwner


class ActiveSessionStatusQuery(Strict):
    """Sessions that are still open."""

    type: Literal["active"] = "active"


class CancelledSessionStatusQuery(Strict):
    """Sessions that were cancelled."""

    type: Literal["cancelled"] = "cancelled"


class FailedSessionStatusQuery(Strict):
    """Sessions that failed."""

    type: Literal["failed"] = "failed"


class ClientFinishedSessionStatusQuery(Strict):
    """Sessions that their client ended, for one of these reasons."""

    type: Literal["client_finished"] = "client_finished"
    reasons: list[ClientSessionFinishReasonType] | None = Field(default=None, min_length=1)


SessionStatusQuery: TypeAlias = (
    ActiveSessionStatusQuery
    | CancelledSessionStatusQuery
    | FailedSessionStatusQuery
    | ClientFinishedSessionStatusQuery
)


class SessionSearchCursor(Lenient):
    """Where the next page of a search begins."""

    last_created_at: AwareDatetime
    last_session_id: str


class SessionSearchRequest(Strict):
    """What to look for among sessions."""

    session_id: str | None = None
    project_ids: list[str] | None = None
    user_metadata: dict[str, str] = Field(default={})
    display_name: str | None = Field(default=None, min_length=1)
    owner: SearchOwner = defaults(OwnSearchOwner)
    statuses: list[SessionStatusQuery] | None = Field(default=None, min_length=1)
    limit: int = Field(default=50, ge=1, le=200)
    cursor: SessionSearchCursor | None = None


class SessionSummary(Lenient):
    """One session as a search shows it."""

    session_id: str
    created_at: datetime
    owner: str
    project_id: str
    status: SessionStatus | None = None
    checkpoints_count: int
    display_name: str | None = None
    user_metadata: dict[str, str] | None = None
    checkpoint_storage_bytes: int | None = None


class SessionSearchResponse(Lenient):
    """A page of what was found."""

    sessions: list[SessionSummary]
    next_cursor: SessionSearchCursor | None = None
