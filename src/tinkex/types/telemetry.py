"""What a client reports about itself. Nothing here may hold a secret; the client removes them."""

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import Field

from tinkex.types.strictness import Lenient, Strict

EventType: TypeAlias = Literal[
    "SESSION_START", "SESSION_END", "UNHANDLED_EXCEPTION", "GENERIC_EVENT"
]
Severity: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class SessionStartEvent(Lenient):
    """The telemetry of a session begins."""

    event: EventType
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime


class SessionEndEvent(Lenient):
    """The telemetry of a session ends."""

    duration: str
    event: EventType
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime


class UnhandledExceptionEvent(Lenient):
    """An exception nobody caught."""

    error_message: str
    error_type: str
    event: EventType
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime
    traceback: str | None = None


class GenericEvent(Lenient):
    """Something that happened, with a name and data."""

    event: EventType
    event_id: str
    event_name: str
    event_session_index: int
    severity: Severity
    timestamp: datetime
    event_data: dict[str, object] = Field(default={})


TelemetryEvent: TypeAlias = (
    SessionStartEvent | SessionEndEvent | UnhandledExceptionEvent | GenericEvent
)


class TelemetryBatch(Lenient):
    """Events of one session and platform."""

    events: list[TelemetryEvent]
    platform: str
    sdk_version: str
    session_id: str
    process_uuid: str


class TelemetrySendRequest(Strict):
    """A batch of events, as it is sent."""

    events: list[TelemetryEvent]
    platform: str
    sdk_version: str
    session_id: str
    process_uuid: str


class TelemetryResponse(Lenient):
    """What the server did with a batch."""

    status: Literal["accepted"]
