"""What our server adds to the protocol's records: names, notes and ends of runs, links to adapters.

The hosted service has none of these and answers with 404 or 405.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import RootModel

from tinkex.client import arguments
from tinkex.client.api import call_policies
from tinkex.client.concurrency.bridge import future_of, on_sdk_loop
from tinkex.client.session.sessionless import SessionlessClient, sdk_headers
from tinkex.types import ExternalWeightsUrlsResponse, ParsedCheckpointTinkerPath
from tinkex.wire import routes
from tinkex.wire.json import dumps


class _Answer(RootModel[dict[str, Any]]):
    """Any JSON object."""


class Additions(SessionlessClient):
    """The part of a ``RestClient`` that only our server answers."""

    async def _change_run(
        self, method: str, verb: str, route: str, training_run_id: str, body: bytes | None = None
    ) -> None:
        arguments.check_text(training_run_id, "training_run_id")
        await self.holder.ready()
        path = route.format(training_run_id=training_run_id)
        await self.holder.api.send(
            verb, path, call_policies.REST, body=body, headers=sdk_headers(method)
        )

    @on_sdk_loop
    async def rename_training_run_async(self, training_run_id: str, name: str | None) -> None:
        """Give a run a name, or take it away with None (an addition; our server only)."""
        body = dumps({"name": name})
        await self._change_run("rename_training_run", "PUT", routes.RUN_NAME, training_run_id, body)

    rename_training_run = future_of(rename_training_run_async)

    @on_sdk_loop
    async def note_training_run_async(self, training_run_id: str, note: str | None) -> None:
        """Keep a remark with a run, or take it away with None (an addition; our server only)."""
        body = dumps({"note": note})
        await self._change_run("note_training_run", "PUT", routes.RUN_NOTE, training_run_id, body)

    note_training_run = future_of(note_training_run_async)

    @on_sdk_loop
    async def stop_training_run_async(self, training_run_id: str) -> None:
        """End a run; what waits fails, checkpoints stay (an addition; our server only)."""
        await self._change_run("stop_training_run", "POST", routes.RUN_STOP, training_run_id)

    stop_training_run = future_of(stop_training_run_async)

    @on_sdk_loop
    async def delete_training_run_async(self, training_run_id: str) -> None:
        """Delete an ended run with all its checkpoints (an addition; our server only)."""
        await self._change_run(
            "delete_training_run", "DELETE", routes.TRAINING_RUN, training_run_id
        )

    delete_training_run = future_of(delete_training_run_async)

    @on_sdk_loop
    async def read_dashboard_async(
        self, path: str, query: Mapping[str, str | float | None] | None = None
    ) -> dict[str, Any]:
        """What the dashboard shows, as JSON (an addition; our server only).

        ``path`` is ``"now"``, ``"runs"``, ``"runs/RUN/history"`` or another that the page on the
        dashboard's JSON lists, ``query`` what may be asked there.
        """
        arguments.check_text(path, "path")
        route = f"{routes.DASHBOARD}/{path}"
        return (await self._get("read_dashboard", route, _Answer, **(query or {}))).root

    read_dashboard = future_of(read_dashboard_async)

    @on_sdk_loop
    async def get_adapter_urls_async(self, tinker_path: str) -> ExternalWeightsUrlsResponse:
        """Signed URLs of a checkpoint's adapter files, of any kind (an addition; our server)."""
        arguments.check_text(tinker_path, "tinker_path")
        parsed = ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
        path = routes.CHECKPOINT_ADAPTER_URLS.format(
            training_run_id=parsed.training_run_id, checkpoint_id=parsed.checkpoint_id
        )
        return await self._get("get_adapter_urls", path, ExternalWeightsUrlsResponse)

    get_adapter_urls = future_of(get_adapter_urls_async)
