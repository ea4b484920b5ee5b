"""What the clients of one session share: the way to the server, its flags, budgets and counters.

Opens lazily, on the first call that needs the server. One loop lease, one transport, at most one
session. The public clients hold a holder; nothing else does, so a client that is dropped without
being closed takes its background work with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as ConcurrentFuture
from enum import Enum
from typing import Any, TypeVar

from tinkex.client.api import call_policies
from tinkex.client.api.api import Api
from tinkex.client.api.telemetry import Telemetry
from tinkex.client.concurrency import loop
from tinkex.client.concurrency.budgets import ByteBudget
from tinkex.client.concurrency.futures import AwaitableConcurrentFuture, ResultFuture
from tinkex.client.errors import APIError, ClientClosedError
from tinkex.client.http import Transport
from tinkex.client.session.polling import Poller
from tinkex.client.session.sampling_dispatch import SamplingDispatch
from tinkex.client.session.session import Session, create_session, fetch_dynamic_flags
from tinkex.client.settings.config import Config
from tinkex.client.settings.logs import apply_log_level
from tinkex.types import ClientConfigRequest, ClientConfigResponse, ClientDynamicConfigResponse
from tinkex.wire import limits, routes
from tinkex.wire.json import dumps, encode_request

T = TypeVar("T")

CLOSE_TIMEOUT = 30.0
JOIN_TIMEOUT = 5.0

logger = logging.getLogger("tinkex")


class HolderKind(Enum):
    """Whether the holder has a session: its own, nobody's, or one that another process opened."""

    SESSION = "session"
    SESSIONLESS = "sessionless"
    SHADOW = "shadow"


class InternalClientHolder:
    """Shared by the clients of one session; see the module's first lines.

    Attributes after ``ready``: ``api``, ``flags``, ``dynamic_flags``, ``poller``, ``telemetry``.
    """

    def __init__(
        self,
        config: Config,
        *,
        kind: HolderKind = HolderKind.SESSION,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        display_name: str | None = None,
        session_id: str | None = None,
        flags: ClientConfigResponse | None = None,
        dynamic_flags: ClientDynamicConfigResponse | None = None,
    ) -> None:
        apply_log_level()
        self.config = config
        self.kind = kind
        self.flags = flags or ClientConfigResponse()
        self.dynamic_flags = dynamic_flags or ClientDynamicConfigResponse()
        self.telemetry: Telemetry | None = None
        self._user_metadata = user_metadata
        self._project_id = project_id
        self._display_name = display_name
        self._given_session_id = session_id
        self._given_flags = flags
        self._pid = os.getpid()
        self._lease = loop.acquire()
        self._api: Api | None = None
        self._open_lock = asyncio.Lock()
        self._opened = False
        self._closing = threading.Lock()
        self._closed = False
        self._session: Session | None = None
        self._in_flight: set[ConcurrentFuture[Any]] = set()
        self._side_tasks: set[asyncio.Task[Any]] = set()
        self._close_callbacks: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._cancel_slots = asyncio.Semaphore(self.dynamic_flags.sample_cancel_max_batch_size)
        self.model_numbers = itertools.count()
        self.sampler_numbers = itertools.count()
        self.custom_loss_numbers = itertools.count()
        self.custom_loss_keys: set[str] = set()
        # Shared with the finalizer, which must not reference the holder itself.
        self._resources: dict[str, Any] = {}
        self._finalizer = weakref.finalize(self, _abandon, self._lease, self._resources)
        self._finalizer.atexit = False
        loop.close_at_exit(weakref.WeakMethod(self.aclose))

    # ---- running work

    def submit(self, work: Coroutine[Any, Any, T]) -> ResultFuture[T]:
        """Run a coroutine on the SDK's loop; refuses after close and after a fork."""
        try:
            self._check_usable()
        except ClientClosedError:
            work.close()
            raise
        future = self._lease.submit(work)
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        if self.telemetry is not None:
            future.add_done_callback(self._report_failure)
        return future

    def _report_failure(self, future: ConcurrentFuture[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None and self.telemetry is not None:
            self.telemetry.log_exception(error)

    def submit_closing(self, work: Coroutine[Any, Any, T]) -> ConcurrentFuture[T]:
        """Run the coroutine that closes this holder: the one that closing does not cancel."""
        return self._lease.submit(work)

    def run_coroutine_threadsafe(
        self, coro: Coroutine[Any, Any, T]
    ) -> AwaitableConcurrentFuture[T]:
        return AwaitableConcurrentFuture(self.submit(coro))

    async def encode(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run CPU-heavy work on an encoder thread."""
        return await self._lease.encode(function, *arguments)

    def in_background(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Start work nobody waits for; it is cancelled when the holder closes."""
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work, name=name)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)

    def on_close(self, callback: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await ``callback()`` when the holder closes, before its connections go."""
        self._close_callbacks.append(callback)

    def cancel_future(self, request_id: str) -> None:
        """Tell the server, some time soon, that nobody waits for this request any more."""
        self.in_background(self._cancel_future(request_id), "tinkex-cancel")

    async def _cancel_future(self, request_id: str) -> None:
        body = dumps({"request_id": request_id})
        async with self._cancel_slots:
            try:
                await self.api.send("POST", routes.CANCEL_FUTURE, call_policies.CANCEL, body=body)
            except APIError as error:
                logger.debug("request %s not cancelled: %s", request_id, type(error).__name__)

    def _check_usable(self) -> None:
        if self._closed:
            raise ClientClosedError("ServiceClient is closed")
        if self._pid != os.getpid():
            raise ClientClosedError(
                "This client belongs to the process that created it. Create a ServiceClient in "
                "the child process, or pass a SamplingClient, which can be shared."
            )

    @property
    def forked(self) -> bool:
        """Whether this object was inherited by a child process, where it cannot work."""
        return self._pid != os.getpid()

    # ---- opening

    @property
    def api(self) -> Api:
        """The way to the server. Only on the SDK's loop."""
        if self._api is None:
            self._check_usable()
            self._api = Api(self.config, _make_transport(self.config))
            self._resources["api"] = self._api
        return self._api

    async def ready(self) -> None:
        """Open on first use; a failed attempt leaves the holder as it was."""
        if self._opened:
            return
        async with self._open_lock:
            if not self._opened:
                await self._open()
                self._opened = True

    async def _open(self) -> None:
        api = self.api
        if self._given_flags is None:
            self.flags = await self._fetch_flags(api)
        api.billing.window = float(self.flags.billing_exception_max_pause_duration_sec)
        api.tokens.configure(
            exchange=api.exchange_token if self.flags.pjwt_auth_enabled else None,
            command_only=self.flags.credential_default_source == "credential_cmd",
        )
        if self._given_flags is None:
            self.dynamic_flags = await fetch_dynamic_flags(api, call_policies.DYNAMIC_CONFIG)
        self.sampling = SamplingDispatch(
            api, ByteBudget(self.flags.sample_dispatch_bytes_semaphore_size)
        )
        self.training_bytes = ByteBudget(self.flags.fwdbwd_dispatch_bytes_semaphore_size)
        self.inflight_bytes = ByteBudget(self.flags.inflight_response_bytes_semaphore_size)
        await self._open_session(api)
        self.poller = Poller(api, self.inflight_bytes)

    async def _fetch_flags(self, api: Api) -> ClientConfigResponse:
        body = encode_request(ClientConfigRequest(sdk_version=limits.PROTOCOL_VERSION))
        response = await api.send(
            "POST",
            routes.CLIENT_CONFIG,
            call_policies.CLIENT_CONFIG,
            body=body,
            credential=await api.tokens.raw(),
        )
        return api.decode(response, ClientConfigResponse, routes.CLIENT_CONFIG)

    async def _open_session(self, api: Api) -> None:
        session_id = self._given_session_id
        if self.kind is HolderKind.SESSION:
            session_id = await create_session(
                api,
                user_metadata=self._user_metadata,
                project_id=self._project_id or self.config.project_id,
                display_name=self._display_name,
            )
        if session_id is not None:
            weak = weakref.WeakMethod(self._set_dynamic_flags)
            self._session = Session(
                api, session_id, self.dynamic_flags, lambda flags: _call_weak(weak, flags)
            )
            self._resources["session"] = self._session
        if self.config.telemetry and not self.config.is_local:
            self.telemetry = Telemetry(api, self._lease, session_id)

    def _set_dynamic_flags(self, flags: ClientDynamicConfigResponse) -> None:
        self.dynamic_flags = flags

    # ---- what clients ask for

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def has_session(self) -> bool:
        return self._session is not None

    @property
    def session_id(self) -> str:
        if self._session is None:
            raise ClientClosedError("this client has no session")
        return self._session.session_id

    def get_session_id(self) -> str:
        return self.session_id

    def get_client_config(self) -> ClientConfigResponse:
        return self.flags

    def get_client_dynamic_config(self) -> ClientDynamicConfigResponse:
        return self.dynamic_flags

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._lease.loop

    def get_telemetry(self) -> Telemetry | None:
        return self.telemetry

    @property
    def on_loop(self) -> bool:
        return self._lease.on_loop

    # ---- closing

    async def finish(self, status: str, detail: str | None) -> None:
        """Report the end of the session, when there is one of ours."""
        if self._session is not None and self.kind is HolderKind.SESSION:
            await self._session.finish(status, detail)

    async def aclose(self) -> None:
        """Stop everything that runs on behalf of this holder. Only on the SDK's loop."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        for future in list(self._in_flight):
            future.cancel()
        await self._stop_side_tasks()
        for callback in self._close_callbacks:
            await callback()
        if self._session is not None:
            await self._session.stop()
        if self.telemetry is not None:
            await self.telemetry.close()
        if self._api is not None:
            await self._api.aclose()
        self._finalizer.detach()
        self._lease.release()

    async def _stop_side_tasks(self) -> None:
        running = tuple(self._side_tasks)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def close(self) -> None:
        """Block until everything is stopped. Not on the SDK's loop."""
        if self._closed or self.forked:
            return
        self.submit_closing(self.aclose()).result(CLOSE_TIMEOUT)
        self._lease.join(JOIN_TIMEOUT)

    def join(self) -> None:
        """After ``aclose``: wait until the loop thread is gone, if this was its last user."""
        self._lease.join(JOIN_TIMEOUT)


def _make_transport(config: Config) -> Transport:
    if config.transport is not None:
        return config.transport(config)
    if config.is_local:
        from tinkex.client.transport.local import LocalTransport

        return LocalTransport(config=config)
    from tinkex.client.transport.plain import PlainTransport

    if config.base_url.startswith("http://") and not config.proxy:
        return PlainTransport(config)
    from tinkex.client.transport.network import NetworkTransport, usable_here

    return NetworkTransport(config) if usable_here() else PlainTransport(config)


def _call_weak(method: weakref.WeakMethod[Any], *arguments: Any) -> None:
    target = method()
    if target is not None:
        target(*arguments)


def _abandon(lease: loop.Lease, resources: dict[str, Any]) -> None:
    """The holder was dropped: stop its session and connections without anybody waiting."""
    if not lease.usable:
        return

    async def stop() -> None:
        if session := resources.get("session"):
            session.cancel()
        if api := resources.get("api"):
            await api.aclose()
        lease.release()

    with contextlib.suppress(RuntimeError):
        lease.submit(stop())
