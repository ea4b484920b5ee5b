"""Checkpoints as records: described, listed, linked to, copied, published, deleted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Literal, TypeVar
from urllib.parse import urljoin
from uuid import uuid4

from pydantic import BaseModel

from tinkex.client import arguments
from tinkex.client.additions import Additions
from tinkex.client.api import call_policies
from tinkex.client.concurrency.bridge import awaitable_of, future_of, on_sdk_loop
from tinkex.client.errors import InvalidArgumentError
from tinkex.client.session.sessionless import sdk_headers
from tinkex.types import (
    CheckpointsListResponse,
    CopyWeightsRequest,
    CopyWeightsResponse,
    ExternalWeightsUrlsResponse,
    ParsedCheckpointTinkerPath,
    WeightsInfoResponse,
)
from tinkex.wire import limits, routes
from tinkex.wire.json import dumps, encode_request

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

AccessScope = Literal["owned", "accessible"]


class CheckpointRecords(Additions):
    """The part of a ``RestClient`` that is about checkpoints."""

    async def _edit(self, method: str, verb: str, path: str, body: bytes | None = None) -> None:
        await self.holder.ready()
        await self.holder.api.send(
            verb, path, call_policies.REST, body=body, headers=sdk_headers(method)
        )

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
        limit, offset = checked_page(limit, offset)
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
        parsed = parsed_path(tinker_path)
        if parsed.checkpoint_type != "external":
            raise InvalidArgumentError(
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
        path = _checkpoint(routes.CHECKPOINT + "/archive", parsed_path(tinker_path))
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
        path = _checkpoint(routes.CHECKPOINT, parsed_path(tinker_path))
        await self._edit("delete_checkpoint_from_tinker_path", "DELETE", path)

    delete_checkpoint_from_tinker_path = future_of(delete_checkpoint_from_tinker_path_async)

    @on_sdk_loop
    async def publish_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """Let everybody read a checkpoint."""
        path = _checkpoint(routes.CHECKPOINT_PUBLISH, parsed_path(tinker_path))
        await self._edit("publish_checkpoint_from_tinker_path", "POST", path)

    publish_checkpoint_from_tinker_path = future_of(publish_checkpoint_from_tinker_path_async)

    @on_sdk_loop
    async def unpublish_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """Make a checkpoint private again."""
        path = _checkpoint(routes.CHECKPOINT_PUBLISH, parsed_path(tinker_path))
        await self._edit("unpublish_checkpoint_from_tinker_path", "DELETE", path)

    unpublish_checkpoint_from_tinker_path = future_of(unpublish_checkpoint_from_tinker_path_async)

    @on_sdk_loop
    async def set_checkpoint_ttl_from_tinker_path_async(
        self, tinker_path: str, ttl_seconds: int | None
    ) -> None:
        """When the checkpoint expires, in seconds from now; None keeps it for ever."""
        seconds = arguments.checked_ttl(ttl_seconds)
        path = _checkpoint(routes.CHECKPOINT_TTL, parsed_path(tinker_path))
        body = json.dumps({"ttl_seconds": seconds}).encode()  # null must be sent
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
        seconds = arguments.checked_ttl(ttl_seconds)
        project = destination_project_id or self.holder.config.project_id
        if not project:
            raise InvalidArgumentError(
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
                    source_path=path, destination_project_id=project, ttl_seconds=seconds
                )
            ),
            CopyWeightsResponse,
            call_policies.REST,
            headers=headers,
            idempotency_key=str(uuid4()),
        )
        return answer.tinker_path

    copy_weights = awaitable_of(copy_weights_async)


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


def parsed_path(tinker_path: str) -> ParsedCheckpointTinkerPath:
    arguments.check_text(tinker_path, "tinker_path")
    return ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)


def _checkpoint(template: str, parsed: ParsedCheckpointTinkerPath) -> str:
    return template.format(
        training_run_id=parsed.training_run_id, checkpoint_id=parsed.checkpoint_id
    )


def checked_page(limit: int, offset: int) -> tuple[int, int]:
    page = arguments.whole(limit, "limit"), arguments.whole(offset, "offset")
    for name, value in zip(("limit", "offset"), page, strict=True):
        if value < 0:
            raise InvalidArgumentError(f"{name}: must be at least 0, got {value}")
    return page
