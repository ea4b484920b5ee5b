"""RestClient: runs, checkpoints and sessions as records: list, read, edit, delete."""

from __future__ import annotations

import asyncio
import warnings
from datetime import date, datetime
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import BaseModel

from tinkex.client import arguments
from tinkex.client.api import call_policies
from tinkex.client.api.credentials_source import jwt_claims
from tinkex.client.checkpoint_records import CheckpointRecords, checked_page, parsed_path
from tinkex.client.concurrency.bridge import awaitable_of, future_of, on_sdk_loop
from tinkex.client.concurrency.futures import ResultFuture
from tinkex.client.errors import ExperimentalWarning
from tinkex.client.session.sessionless import sdk_headers
from tinkex.types import (
    AuditLogResponse,
    BillingUsageResponse,
    CurrentCheckpointStorageUsageResponse,
    GetSamplerResponse,
    GetSessionResponse,
    ListSessionsResponse,
    SessionSearchRequest,
    SessionSearchResponse,
    TrainingRun,
    TrainingRunsResponse,
    WhoamiResponse,
)
from tinkex.wire import routes
from tinkex.wire.json import dumps, encode_request

if TYPE_CHECKING:
    from tinkex.client.admin import AdminClient, AuditEventType

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

AccessScope = Literal["owned", "accessible"]


class RestClient(CheckpointRecords):
    """Reads and edits what the server keeps. Opens no session.

    Sync methods return a ``concurrent.futures.Future`` that can also be awaited; ``_async`` methods
    return the value.
    """

    # ---- training runs

    @on_sdk_loop
    async def get_training_run_async(
        self, training_run_id: str, access_scope: AccessScope = "owned"
    ) -> TrainingRun:
        """One training run."""
        arguments.check_text(training_run_id, "training_run_id")
        path = routes.TRAINING_RUN.format(training_run_id=training_run_id)
        return await self._get("get_training_run", path, TrainingRun, access_scope=access_scope)

    get_training_run = future_of(get_training_run_async)

    @on_sdk_loop
    async def get_training_run_by_tinker_path_async(
        self, tinker_path: str, access_scope: AccessScope = "owned"
    ) -> TrainingRun:
        """The training run a checkpoint belongs to."""
        parsed = parsed_path(tinker_path)
        path = routes.TRAINING_RUN.format(training_run_id=parsed.training_run_id)
        return await self._get(
            "get_training_run_by_tinker_path", path, TrainingRun, access_scope=access_scope
        )

    get_training_run_by_tinker_path = future_of(get_training_run_by_tinker_path_async)

    @on_sdk_loop
    async def list_training_runs_async(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: AccessScope = "owned",
        project_id: str | None = None,
    ) -> TrainingRunsResponse:
        """A page of training runs, newest first."""
        limit, offset = checked_page(limit, offset)
        return await self._get(
            "list_training_runs",
            routes.TRAINING_RUNS,
            TrainingRunsResponse,
            limit=limit,
            offset=offset,
            access_scope=access_scope,
            project_id=project_id,
        )

    list_training_runs = future_of(list_training_runs_async)

    # ---- sessions and samplers

    @on_sdk_loop
    async def get_session_async(
        self, session_id: str, access_scope: AccessScope = "owned"
    ) -> GetSessionResponse:
        """The runs and samplers of a session."""
        arguments.check_text(session_id, "session_id")
        path = routes.SESSION.format(session_id=session_id)
        return await self._get("get_session", path, GetSessionResponse, access_scope=access_scope)

    get_session = future_of(get_session_async)

    @on_sdk_loop
    async def list_sessions_async(
        self, limit: int = 20, offset: int = 0, access_scope: AccessScope = "owned"
    ) -> ListSessionsResponse:
        """A page of session ids."""
        limit, offset = checked_page(limit, offset)
        return await self._get(
            "list_sessions",
            routes.SESSIONS,
            ListSessionsResponse,
            limit=limit,
            offset=offset,
            access_scope=access_scope,
        )

    list_sessions = future_of(list_sessions_async)

    @on_sdk_loop
    async def assign_session_project_async(self, session_id: str, project_id: str) -> None:
        """Move a session to a project."""
        arguments.check_text(session_id, "session_id")
        arguments.check_text(project_id, "project_id")
        path = routes.SESSION_PROJECT.format(session_id=session_id)
        await self._edit("assign_session_project", "PUT", path, dumps({"project_id": project_id}))

    assign_session_project = future_of(assign_session_project_async)

    @on_sdk_loop
    async def export_session_trace_async(self, session_id: str) -> str:
        """A signed URL of the session's trace; waits until the server has made it."""
        arguments.check_text(session_id, "session_id")
        path = routes.SESSION_TRACE_EXPORT.format(session_id=session_id)
        while True:
            export = await self._get("export_session_trace", path, _TraceExport)
            if export.status == "failed":
                raise RuntimeError(f"The trace export failed: {export.error or 'no reason given'}")
            if export.status == "ready":
                if export.url is None:
                    raise RuntimeError("The trace export is ready but has no URL.")
                return export.url
            await asyncio.sleep(self.holder.config.timings.trace_export_interval)

    export_session_trace = future_of(export_session_trace_async)

    @on_sdk_loop
    async def _whoami_async(self) -> WhoamiResponse:
        """Who the credential belongs to, read from its JWT; RuntimeError when there is none."""
        await self.holder.ready()
        token = await self.holder.api.tokens.identity_jwt()
        claims = jwt_claims(token) if token else {}
        if "sub" not in claims:
            raise RuntimeError("whoami needs a JWT: plain API keys do not say who they belong to.")
        return WhoamiResponse(
            user_urn=str(claims["sub"]),
            org_urn=f"tml:organization:{claims.get('org_id')}",
            email=claims.get("email"),
        )

    whoami = awaitable_of(_whoami_async)

    @on_sdk_loop
    async def get_sampler_async(self, sampler_id: str) -> GetSamplerResponse:
        """What a sampler serves."""
        arguments.check_text(sampler_id, "sampler_id")
        path = routes.SAMPLER.format(sampler_id=sampler_id)
        return await self._get("get_sampler", path, GetSamplerResponse)

    get_sampler = awaitable_of(get_sampler_async)

    @on_sdk_loop
    async def search_sessions_async(self, request: SessionSearchRequest) -> SessionSearchResponse:
        """Find sessions by name, metadata, owner or status. Experimental."""
        _warn_experimental("search_sessions")
        if not isinstance(request, SessionSearchRequest):
            raise TypeError(
                f"request: expected a SessionSearchRequest, got {type(request).__name__}"
            )
        await self.holder.ready()
        return await self.holder.api.post(
            routes.SEARCH_SESSIONS,
            encode_request(request),
            SessionSearchResponse,
            call_policies.REST,
            headers=sdk_headers("search_sessions"),
        )

    search_sessions = future_of(search_sessions_async)

    # ---- moved to AdminClient

    def _admin(self, method: str) -> AdminClient:
        from tinkex.client.admin import AdminClient

        warnings.warn(
            f"RestClient.{method} is deprecated: use AdminClient.{method}",
            FutureWarning,
            stacklevel=3,
        )
        return AdminClient(self.holder)

    def get_audit_log(
        self, event_type: AuditEventType = "all", day: date | None = None
    ) -> ResultFuture[AuditLogResponse]:
        """Deprecated: use ``AdminClient.get_audit_log``."""
        return self._admin("get_audit_log").get_audit_log(event_type, day)

    async def get_audit_log_async(
        self, event_type: AuditEventType = "all", day: date | None = None
    ) -> AuditLogResponse:
        """Deprecated: use ``AdminClient.get_audit_log_async``."""
        return await self._admin("get_audit_log").get_audit_log_async(event_type, day)

    def get_billing_usage(
        self, starting_on: datetime | str, ending_before: datetime | str
    ) -> ResultFuture[BillingUsageResponse]:
        """Deprecated: use ``AdminClient.get_billing_usage``."""
        return self._admin("get_billing_usage").get_billing_usage(starting_on, ending_before)

    async def get_billing_usage_async(
        self, starting_on: datetime | str, ending_before: datetime | str
    ) -> BillingUsageResponse:
        """Deprecated: use ``AdminClient.get_billing_usage_async``."""
        admin = self._admin("get_billing_usage")
        return await admin.get_billing_usage_async(starting_on, ending_before)

    def get_current_checkpoint_storage_usage(
        self, project_id: str | None = None
    ) -> ResultFuture[CurrentCheckpointStorageUsageResponse]:
        """Deprecated: use ``AdminClient.get_current_checkpoint_storage_usage``."""
        admin = self._admin("get_current_checkpoint_storage_usage")
        return admin.get_current_checkpoint_storage_usage(project_id)

    async def get_current_checkpoint_storage_usage_async(
        self, project_id: str | None = None
    ) -> CurrentCheckpointStorageUsageResponse:
        """Deprecated: use ``AdminClient.get_current_checkpoint_storage_usage_async``."""
        admin = self._admin("get_current_checkpoint_storage_usage")
        return await admin.get_current_checkpoint_storage_usage_async(project_id)


class _TraceExport(BaseModel):
    status: Literal["pending", "ready", "failed"]
    url: str | None = None
    error: str | None = None


def _warn_experimental(method: str) -> None:
    warnings.warn(f"{method} is experimental and may change", ExperimentalWarning, stacklevel=4)
