"""A session on the server: created once, kept alive by heartbeats, finished when the client closes.

Also refreshes the flags the server may change while a session runs. Knows nothing about what the
session is used for.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable

from tinkex.client.api import call_policies
from tinkex.client.api.api import Api
from tinkex.client.errors import APIError, APIStatusError, NotFoundError
from tinkex.client.events import bus as events
from tinkex.types import (
    ClientConfigRequest,
    ClientDynamicConfigResponse,
    CreateSessionRequest,
    CreateSessionResponse,
)
from tinkex.wire import limits, routes
from tinkex.wire.json import encode_request

logger = logging.getLogger("tinkex")


async def create_session(
    api: Api,
    *,
    user_metadata: dict[str, str] | None,
    project_id: str | None,
    display_name: str | None,
) -> str:
    """Open a session and pass on what the server has to say about it."""
    request = CreateSessionRequest(
        tags=sorted(api.config.tags),
        user_metadata=user_metadata or {},
        sdk_version=limits.PROTOCOL_VERSION,
        project_id=project_id,
        display_name=display_name,
    )
    answer = await api.post(
        routes.CREATE_SESSION, encode_request(request), CreateSessionResponse, call_policies.SESSION
    )
    for level, message in (
        (logging.INFO, answer.info_message),
        (logging.WARNING, answer.warning_message),
        (logging.ERROR, answer.error_message),
    ):
        if message:
            logger.log(level, "%s", message)
    logger.info("session %s is open", answer.session_id)
    return answer.session_id


async def fetch_dynamic_flags(
    api: Api, purpose: call_policies.Purpose
) -> ClientDynamicConfigResponse:
    """The flags that may change; a server without them gets the defaults."""
    body = encode_request(ClientConfigRequest(sdk_version=limits.PROTOCOL_VERSION))
    try:
        return await api.post(
            routes.CLIENT_DYNAMIC_CONFIG, body, ClientDynamicConfigResponse, purpose
        )
    except NotFoundError:
        return ClientDynamicConfigResponse()


class Session:
    """A session somebody opened, kept alive from here until ``stop``."""

    def __init__(
        self,
        api: Api,
        session_id: str,
        flags: ClientDynamicConfigResponse,
        on_flags: Callable[[ClientDynamicConfigResponse], None],
    ) -> None:
        self.session_id = session_id
        self._api = api
        self._interval = flags.refresh_interval_sec
        self._on_flags = on_flags
        self._tasks = [
            asyncio.create_task(self._beat(), name="tinkex-heartbeat"),
            asyncio.create_task(self._refresh_flags(), name="tinkex-flags"),
        ]
        api.bus.emit(events.SESSION_START, session_id=session_id)

    async def finish(self, status: str, detail: str | None) -> None:
        """Tell the server that this session is over and why."""
        body = json.dumps({"reason": {"type": status}, "detail": detail}).encode()
        await self._api.send(
            "POST",
            routes.FINISH_SESSION.format(session_id=self.session_id),
            call_policies.FINISH,
            body=body,
        )

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._api.bus.emit(events.SESSION_STOP, session_id=self.session_id)

    def cancel(self) -> None:
        """Stop without waiting, for when the owner was dropped without being closed."""
        for task in self._tasks:
            task.cancel()

    async def _beat(self) -> None:
        timings = self._api.config.timings
        body = json.dumps(
            {"session_id": self.session_id, "type": "session_heartbeat"}, separators=(",", ":")
        ).encode()
        alive = time.monotonic()
        while True:
            await asyncio.sleep(timings.heartbeat_interval)
            try:
                await self._api.send(
                    "POST", routes.SESSION_HEARTBEAT, call_policies.HEARTBEAT, body=body
                )
            except APIError as error:
                if isinstance(error, APIStatusError) and error.status_code == 410:
                    logger.debug("session %s is over on the server", self.session_id)
                    return
                self._missed(time.monotonic() - alive, error)
            else:
                alive = time.monotonic()
                self._api.bus.emit(events.SESSION_HEARTBEAT, session_id=self.session_id)

    def _missed(self, silent: float, error: APIError) -> None:
        self._api.bus.emit(
            events.SESSION_HEARTBEAT_MISSED,
            session_id=self.session_id,
            silent=silent,
            error=type(error).__name__,
        )
        if silent >= self._api.config.timings.heartbeat_warn_after:
            logger.warning(
                "No heartbeat of session %s reached the server for %.0f s (%s); it may end the "
                "session. Check the network.",
                self.session_id,
                silent,
                type(error).__name__,
            )

    async def _refresh_flags(self) -> None:
        while True:
            floor = self._api.config.timings.dynamic_refresh_floor
            await asyncio.sleep(max(self._interval, floor))
            try:
                flags = await fetch_dynamic_flags(self._api, call_policies.DYNAMIC_REFRESH)
            except APIError as error:
                logger.debug("flags not refreshed: %s", type(error).__name__)
                continue
            self._interval = flags.refresh_interval_sec
            self._on_flags(flags)
