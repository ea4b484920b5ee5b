"""What use cost, what storage costs now, and who did what: the administrator's answers."""

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from tinkex.types.strictness import Lenient, Strict


class GetBillingUsageRequest(Strict):
    """Asks for the usage between two hours."""

    starting_on: datetime
    ending_before: datetime


class TrainingBillingEvent(Lenient):
    """Tokens trained on."""

    type: Literal["training"] = "training"
    token_count: int


class SamplingPrefillBillingEvent(Lenient):
    """Prompt tokens read, from the cache or not."""

    type: Literal["sampling_prefill"] = "sampling_prefill"
    cached: bool
    token_count: int


class SamplingSampleBillingEvent(Lenient):
    """Tokens generated."""

    type: Literal["sampling_sample"] = "sampling_sample"
    token_count: int


class CheckpointBillingEvent(Lenient):
    """Checkpoints made."""

    type: Literal["checkpoint"] = "checkpoint"
    count: int


class StorageBillingEvent(Lenient):
    """Gigabyte-hours stored."""

    type: Literal["storage"] = "storage"
    gigabyte_hours: float


BillingEventInfo: TypeAlias = Annotated[
    TrainingBillingEvent
    | SamplingPrefillBillingEvent
    | SamplingSampleBillingEvent
    | CheckpointBillingEvent
    | StorageBillingEvent,
    Field(discriminator="type"),
]


class BillingUsageEvent(Lenient):
    """What was used in one hour by one session, and its estimated cost."""

    bucket_start: datetime
    bucket_end: datetime
    base_model: str | None = None
    user_id: str | None = None
    user_name: str | None = None
    session_id: str | None = None
    project_id: str | None = None
    estimated_cost_usd: float | None = None
    effective_rate_usd_per_million_tokens: float | None = None
    effective_rate_usd_per_gigabyte_month: float | None = None
    event_info: BillingEventInfo


class BillingUsageSession(Lenient):
    """What a usage report knows about a session."""

    user_metadata: dict[str, str] | None = None


class BillingUsageResponse(Lenient):
    """Usage by hour, the sessions it names, and how far the costs are known."""

    data: list[BillingUsageEvent]
    sessions: dict[str, BillingUsageSession] = Field(default={})
    cost_data_through: datetime | None = None


class GetCurrentCheckpointStorageUsageRequest(Strict):
    """Asks for what is kept now, of one project or of all."""

    project_id: str | None = None


class CurrentCheckpointStorageUsageItem(Lenient):
    """What one project or user keeps now."""

    project_id: str | None = None
    org_user_urn: str | None = None
    user_email: str | None = None
    user_name: str | None = None
    checkpoint_count: int
    size_bytes: int
    size_gigabytes: float
    estimated_monthly_cost_usd: float | None = None


class CurrentCheckpointStorageUsageResponse(Lenient):
    """What is kept now, and its rate."""

    effective_rate_usd_per_gigabyte_month: float | None = None
    data: list[CurrentCheckpointStorageUsageItem]


class AuditLogEntry(Lenient):
    """One audited event. The last three fields are the older form of `event_details`."""

    timestamp: datetime
    event: str
    event_details: dict[str, object] = Field(default={})
    model_id: str | None = None
    tinker_path: str | None = None
    purpose: str | None = None


class AuditLogResponse(Lenient):
    """The entries of one day."""

    entries: list[AuditLogEntry]
