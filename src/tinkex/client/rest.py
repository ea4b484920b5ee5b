"""RestClient: runs, checkpoints and sessions as records: list, read, edit, delete."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Mapping
from datetime import date, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import urljoin
from uuid import uuid4

from pydantic import BaseModel

from tinkex.client import arguments
from tinkex.client.additions import Additions
from tinkex.client.api import call_policies
from tinkex.client.api.credentials_source import jwt_claims
from tinkex.client.concurrency.bridge import awaitable_of, future_of, on_sdk_loop
from tinkex.client.concurrency.futures import ResultFuture
from tinkex.client.errors import ExperimentalWarning
from tinkex.client.session.sessionless import sdk_headers
from tinkex.types import (
    AuditLogResponse,
    BillingUsageResponse,
    CheckpointsListResponse,
    CopyWeightsRequest,
    CopyWeightsResponse,
    CurrentCheckpointStorageUsageResponse,
    ExternalWeightsUrlsResponse,
    GetSamplerResponse,
    GetSessionResponse,
    ListSessionsResponse,
    ParsedCheckpointTinkerPath,
    SessionSearchRequest,
    SessionSearchResponse,
    TrainingRun,
    TrainingRunsResponse,
    WeightsInfoResponse,
    WhoamiResponse,
)
from tinkex.wire import limits, routes
from tinkex.wire.json import dumps, encode_request

if TYPE_CHECKING:
    from tinkex.client.admin import AdminClient, AuditEventType

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

AccessScope = Literal["owned", "accessible"]


class RestClient(Additions):
    """Reads and edits what the server keeps. Opens no session.

    Sync methods return a ``concurrent.futures.Future`` that can also be awaited; ``_async`` methods
    return the value.
    """

    # ---- how requests are made

    async def _edit(self, method: str, verb: str, path: str, body: bytes | None = None) -> None:
        await self.holder.ready()
        await self.holder.api.send(
            verb, path, call_policies.REST, body=body, headers=sdk_headers(method)
        )

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
        parsed = _parse(tinker_path)
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
        _check_page(limit, offset)
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

    async def weights_info(self, tinker_path: str) -> WeightsInfoResponse:
        """How a checkpoint was made. Only on the SDK's loop."""
        arguments.check_model_path(tinker_path, "tinker_path")
        await self.holder.ready()
        return await self.holder.api.post(
            routes.WEIGHTS_INFO,
            dumps({"tinker_path": tinker_path}),
            WeightsInfoResponse,
            call_policies.REST,
            headers=sdk_headers("get_weights_info_by_tinker_path"),
        )

    @on_sdk_loop
    async def _get_weights_info_by_tinker_path_async(self, tinker_path: str) -> WeightsInfoResponse:
        """The base model and adapter settings of a checkpoint, public ones included."""
        return await self.weights_info(tinker_path)

    get_weights_info_by_tinker_path = awaitable_of(_get_weights_info_by_tinker_path_async)

    # ---- checkpoints

    @on_sdk_loop
    async def list_checkpoints_async(self, training_run_id: str) -> CheckpointsListResponse:
        """All checkpoints of one run."""
        arguments.check_text(training_run_id, "training_run_id")
        path = routes.RUN_CHECKPOINTS.format(training_run_id=training_run_id)
        return await self._get("list_checkpoints", path, CheckpointsListResponse)

    list_checkpoints = future_of(list_checkpoints_async)

    @on_sdk_loop
    async def list_user_checkpoints_async(
        self, limit: int = 100, offset: int = 0
    ) -> CheckpointsListResponse:
        """A page of the caller's checkpoints over all runs, newest first."""
        _check_page(limit, offset)
        return await self._get(
            "list_user_checkpoints",
            routes.CHECKPOINTS,
            CheckpointsListResponse,
            limit=limit,
            offset=offset,
        )

    list_user_checkpoints = future_of(list_user_checkpoints_async)

    @on_sdk_loop
    async def get_external_weights_urls_async(
        self, tinker_path: str
    ) -> ExternalWeightsUrlsResponse:
        """Signed URLs of the files of an exported checkpoint."""
        parsed = _parse(tinker_path)
        if parsed.checkpoint_type != "external":
            raise ValueError(
                f"tinker_path: must be an external_weights path, got {tinker_path!r}; "
                "make one with TrainingClient.save_weights_external"
            )
        path = _checkpoint(routes.CHECKPOINT_EXTERNAL_URLS, parsed)
        return await self._get("get_external_weights_urls", path, ExternalWeightsUrlsResponse)

    get_external_weights_urls = future_of(get_external_weights_urls_async)

    @on_sdk_loop
    async def get_checkpoint_archive_url_from_tinker_path_async(
        self, tinker_path: str
    ) -> CheckpointArchiveUrl:
        """A signed URL of one archive with all files of a checkpoint (an addition).

        The current official SDK no longer offers it; the cookbook still asks for it.
        """
        path = _checkpoint(routes.CHECKPOINT + "/archive", _parse(tinker_path))
        headers = sdk_headers("get_checkpoint_archive_url_from_tinker_path")
        await self.holder.ready()
        api = self.holder.api
        answer = await api.send(
            "GET", path, call_policies.REST, headers=headers, follow_redirects=False
        )
        if answer.status < 300:
            return api.decode(answer, CheckpointArchiveUrl, path)
        return CheckpointArchiveUrl.of_redirect(api.url(path), answer.headers)

    get_checkpoint_archive_url_from_tinker_path = future_of(
        get_checkpoint_archive_url_from_tinker_path_async
    )

    @on_sdk_loop
    async def delete_checkpoint_async(self, training_run_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint for good. ``checkpoint_id`` is ``<kind>/<name>``."""
        arguments.check_text(training_run_id, "training_run_id")
        arguments.check_text(checkpoint_id, "checkpoint_id")
        path = routes.CHECKPOINT.format(
            training_run_id=training_run_id, checkpoint_id=checkpoint_id
        )
        await self._edit("delete_checkpoint", "DELETE", path)

    delete_checkpoint = future_of(delete_checkpoint_async)

    @on_sdk_loop
    async def delete_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """Delete a checkpoint for good."""
        path = _checkpoint(routes.CHECKPOINT, _parse(tinker_path))
        await self._edit("delete_checkpoint_from_tinker_path", "DELETE", path)

    delete_checkpoint_from_tinker_path = future_of(delete_checkpoint_from_tinker_path_async)

    @on_sdk_loop
    async def publish_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """Let everybody read a checkpoint."""
        path = _checkpoint(routes.CHECKPOINT_PUBLISH, _parse(tinker_path))
        await self._edit("publish_checkpoint_from_tinker_path", "POST", path)

    publish_checkpoint_from_tinker_path = future_of(publish_checkpoint_from_tinker_path_async)

    @on_sdk_loop
    async def unpublish_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """Make a checkpoint private again."""
        path = _checkpoint(routes.CHECKPOINT_PUBLISH, _parse(tinker_path))
        await self._edit("unpublish_checkpoint_from_tinker_path", "DELETE", path)

    unpublish_checkpoint_from_tinker_path = future_of(unpublish_checkpoint_from_tinker_path_async)

    @on_sdk_loop
    async def set_checkpoint_ttl_from_tinker_path_async(
        self, tinker_path: str, ttl_seconds: int | None
    ) -> None:
        """When the checkpoint expires, in seconds from now; None keeps it for ever."""
        arguments.check_ttl(ttl_seconds)
        path = _checkpoint(routes.CHECKPOINT_TTL, _parse(tinker_path))
        body = json.dumps({"ttl_seconds": ttl_seconds}).encode()  # null must be sent
        await self._edit("set_checkpoint_ttl_from_tinker_path", "PUT", path, body)

    set_checkpoint_ttl_from_tinker_path = future_of(set_checkpoint_ttl_from_tinker_path_async)

    @on_sdk_loop
    async def copy_weights_async(
        self,
        path: str,
        destination_project_id: str | None = None,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
    ) -> str:
        """Copy a checkpoint into a project; returns its new path."""
        arguments.check_model_path(path)
        arguments.check_ttl(ttl_seconds)
        project = destination_project_id or self.holder.config.project_id
        if not project:
            raise ValueError(
                "destination_project_id: is required; pass it or set TINKER_PROJECT_ID"
            )
        headers = sdk_headers("copy_weights")
        if weights_access_token is not None:
            headers[limits.HEADER_WEIGHTS_ACCESS_TOKEN] = weights_access_token
        await self.holder.ready()
        answer = await self.holder.api.post(
            routes.COPY_WEIGHTS,
            encode_request(
                CopyWeightsRequest(
                    source_path=path, destination_project_id=project, ttl_seconds=ttl_seconds
                )
            ),
            CopyWeightsResponse,
            call_policies.REST,
            headers=headers,
            idempotency_key=str(uuid4()),
        )
        return answer.tinker_path

    copy_weights = awaitable_of(copy_weights_async)

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
        _check_page(limit, offset)
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


class CheckpointArchiveUrl(BaseModel):
    """Where to download a checkpoint as one archive, and until when."""

    url: str
    expires: datetime | None = None

    @classmethod
    def of_redirect(cls, asked: str, headers: Mapping[str, str]) -> CheckpointArchiveUrl:
        """What a server says that answers with a redirect to the archive."""
        try:
            expires = parsedate_to_datetime(headers.get("expires", ""))
        except ValueError:  # none, or "0": not known
            expires = None
        return cls(url=urljoin(asked, headers.get("location", "")), expires=expires)


class _TraceExport(BaseModel):
    status: Literal["pending", "ready", "failed"]
    url: str | None = None
    error: str | None = None


def _parse(tinker_path: str) -> ParsedCheckpointTinkerPath:
    arguments.check_text(tinker_path, "tinker_path")
    return ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)


def _checkpoint(template: str, parsed: ParsedCheckpointTinkerPath) -> str:
    return template.format(
        training_run_id=parsed.training_run_id, checkpoint_id=parsed.checkpoint_id
    )


def _check_page(limit: int, offset: int) -> None:
    for name, value in (("limit", limit), ("offset", offset)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: expected a whole number, got {type(value).__name__}")
        if value < 0:
            raise ValueError(f"{name}: must be at least 0, got {value}")


def _warn_experimental(method: str) -> None:
    warnings.warn(f"{method} is experimental and may change", ExperimentalWarning, stacklevel=4)
