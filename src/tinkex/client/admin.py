"""AdminClient: audit log, billing and storage of an organisation."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from pydantic import BaseModel

from tinkex.client.concurrency.bridge import future_of, on_sdk_loop
from tinkex.client.session.sessionless import SessionlessClient
from tinkex.types import (
    AuditLogResponse,
    BillingUsageResponse,
    CurrentCheckpointStorageUsageResponse,
    GetBillingUsageRequest,
)
from tinkex.wire import routes

if TYPE_CHECKING:
    pass

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

AuditEventType = Literal["all", "checkpoints", "projects", "teams", "organizations"]


class AdminClient(SessionlessClient):
    """What administrators may see. The server decides who is one."""

    @on_sdk_loop
    async def get_audit_log_async(
        self, event_type: AuditEventType = "all", day: date | None = None
    ) -> AuditLogResponse:
        """The organisation's events of one UTC day, or the recent ones."""
        if event_type not in get_args(AuditEventType):
            known = ", ".join(get_args(AuditEventType))
            raise ValueError(f"event_type: must be one of {known}, got {event_type!r}")
        return await self._get(
            "get_audit_log",
            routes.AUDIT_LOG,
            AuditLogResponse,
            event_type=event_type,
            day=None if day is None else day.isoformat(),
        )

    get_audit_log = future_of(get_audit_log_async)

    @on_sdk_loop
    async def get_billing_usage_async(
        self, starting_on: datetime | str, ending_before: datetime | str
    ) -> BillingUsageResponse:
        """Usage in hourly buckets; both ends UTC-hour aligned, at most 14 days apart."""
        window = GetBillingUsageRequest.model_validate(
            {"starting_on": starting_on, "ending_before": ending_before}
        ).model_dump(mode="json")
        return await self._get(
            "get_billing_usage", routes.BILLING_USAGE, BillingUsageResponse, **window
        )

    get_billing_usage = future_of(get_billing_usage_async)

    @on_sdk_loop
    async def get_current_checkpoint_storage_usage_async(
        self, project_id: str | None = None
    ) -> CurrentCheckpointStorageUsageResponse:
        """How much checkpoints take up now, by project and owner."""
        return await self._get(
            "get_current_checkpoint_storage_usage",
            routes.CURRENT_CHECKPOINT_STORAGE,
            CurrentCheckpointStorageUsageResponse,
            project_id=project_id,
        )

    get_current_checkpoint_storage_usage = future_of(get_current_checkpoint_storage_usage_async)
