"""Requests to an ASGI app in this process, or to the process that serves the same home already.

``base_url="local"`` finds the embedded server by name, so the SDK imports nothing of it until
then. All clients of a process share one running app; it starts with the first and shuts down
with the last. Who comes second to a home joins the first through the socket in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from tinkex.client.errors import TinkerError
from tinkex.client.http import (
    HttpRequest,
    HttpResponse,
    NobodyThere,
    Refused,
    StreamingTransport,
    Transport,
    TransportError,
    TransportTimeout,
)

if TYPE_CHECKING:
    from tinkex.client.settings.config import Config

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

EMBEDDED_SERVER = "tinkex.server.hosting.embedded"
LOCAL_ORIGIN = "http://local.tinkex"
HOLDER_PATIENCE = 30.0
"""Seconds that another process may take to begin or end serving the home."""
HOLDER_PAUSE = 0.1

logger = logging.getLogger("tinkex")


class HomeHeld(Exception):
    """The server of another process lives in the home. The message is for people; `socket` is where
    it answers this user's processes, empty if nowhere."""

    def __init__(self, message: str, socket: str) -> None:
        super().__init__(message)
        self.socket = socket


class LocalTransport:
    """Drives one app on the loop it is used from, or speaks to the process that has its home.

    A home has one server. When the process that serves it ends, the next request finds out who does
    now: another one, or this one, which then goes on where the other stopped.
    """

    def __init__(
        self, open_app: Callable[[], ASGIApp] | None = None, config: Config | None = None
    ) -> None:
        self._open_app = open_app or _open_embedded
        self._config = config
        self._running: RunningApp | None = None
        self._joined: StreamingTransport | None = None
        self._placing = asyncio.Lock()
        self._closed = False

    async def request(self, request: HttpRequest) -> HttpResponse:
        while True:
            place = await self._place()
            try:
                return await place.request(request)
            except NobodyThere:
                await self._leave(place)

    async def stream(self, request: HttpRequest) -> AsyncGenerator[bytes, None]:
        place = await self._place()
        async with contextlib.aclosing(place.stream(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def aclose(self) -> None:
        self._closed = True
        if self._joined is not None:
            await self._joined.aclose()
        if self._running is not None:
            running, self._running = self._running, None
            await running.release()

    async def _place(self) -> StreamingTransport:
        """The way to whoever serves the home now."""
        if self._closed:
            raise TransportError("the local transport is closed")
        async with self._placing:
            patience = asyncio.get_running_loop().time() + HOLDER_PATIENCE
            while self._joined is None:
                if self._running is None:
                    self._running = RunningApp.shared(self._open_app)
                try:
                    return InProcess(await self._running.started())
                except HomeHeld as held:
                    self._running = None
                    await self._join(held, patience)
            return self._joined

    async def _join(self, held: HomeHeld, patience: float) -> None:
        """Connect to who holds the home; while it is starting or ending there is nobody to."""
        if held.socket and self._config is not None:
            from tinkex.client.transport.joined import JoinedTransport

            joined = JoinedTransport(self._config, held.socket)
            if await joined.is_answered():
                self._joined = joined
                return
            if asyncio.get_running_loop().time() < patience:
                await asyncio.sleep(HOLDER_PAUSE)
                return
        raise TinkerError(f"The embedded server cannot start: {held}") from held

    async def _leave(self, place: Transport) -> None:
        """Its process has ended: the next request looks again."""
        if self._joined is place:
            self._joined = None
            await place.aclose()


class InProcess:
    """An app that is running on this loop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def request(self, request: HttpRequest) -> HttpResponse:
        exchange = _Exchange(request)
        try:
            async with asyncio.timeout(request.timeout):
                await self._app(exchange.scope, exchange.receive, exchange.send)
        except TimeoutError as error:
            raise TransportTimeout("timed out") from error
        except Exception as error:
            if not exchange.complete:
                logger.exception("the local server failed on %s", exchange.scope["path"])
                raise TransportError(f"the local server failed: {type(error).__name__}") from error
        return exchange.response()

    async def stream(self, request: HttpRequest) -> AsyncGenerator[bytes, None]:
        exchange = _Exchange(request)
        serving = asyncio.create_task(self._serve(exchange))
        try:
            async for piece in exchange.pieces():
                yield piece
        finally:
            exchange.disconnect()
            serving.cancel()
            await asyncio.wait([serving])

    async def _serve(self, exchange: _Exchange) -> None:
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        finally:
            exchange.disconnect()

    async def aclose(self) -> None:
        """The app ends with its last user, see ``RunningApp``."""


class _Exchange:
    """One HTTP request in ASGI terms."""

    def __init__(self, request: HttpRequest) -> None:
        parts = urlsplit(request.url)
        headers = [(n.lower().encode(), v.encode("latin-1")) for n, v in request.headers.items()]
        body = request.body or b""
        headers += [(b"host", b"local"), (b"content-length", str(len(body)).encode())]
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": unquote(parts.path),
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 0),
            "server": ("local", 80),
            "state": {},
        }
        self.complete = False
        self._body: bytes | None = body
        self._status = 0
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._done = asyncio.Event()
        self._news = asyncio.Event()

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._done.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in message.get("headers", ())
            }
        elif message["type"] == "http.response.body":
            self._pieces.append(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                self.complete = True
                self._done.set()
            self._news.set()

    def disconnect(self) -> None:
        """Nobody reads any more, or nobody writes."""
        self._done.set()
        self._news.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it is written; ``Refused`` for an error status."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._status < 400:
                while self._pieces:
                    yield self._pieces.pop(0)
            if self.complete and self._status >= 400:
                raise Refused(self.response())
            if self.complete:
                return
            if self._done.is_set():
                raise TransportError("the local server ended without a whole answer")

    def response(self) -> HttpResponse:
        if not self.complete:
            raise TransportError("the local server ended without a whole answer")
        return HttpResponse(self._status, self._headers, b"".join(self._pieces))


class RunningApp:
    """An app between its lifespan startup and shutdown, shared by the transports using it."""

    _shared: RunningApp | None = None

    def __init__(self, open_app: Callable[[], ASGIApp]) -> None:
        self._open_app = open_app
        self._loop = asyncio.get_running_loop()
        self._users = 0
        self._app: ASGIApp | None = None
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._lifespan = self._loop.create_task(self._run(), name="tinkex-local-server")

    @classmethod
    def shared(cls, open_app: Callable[[], ASGIApp]) -> RunningApp:
        """The running app of this loop for this opener, counted as used once more."""
        current = cls._shared
        loop = asyncio.get_running_loop()
        if (
            current is None
            or current._loop is not loop
            or current._open_app is not open_app
            or current._has_failed()  # what was in the way may be gone by now
        ):
            current = cls(open_app)
            if open_app is _open_embedded:
                cls._shared = current
        current._users += 1
        return current

    def _has_failed(self) -> bool:
        return self._started.done() and self._started.exception() is not None

    async def started(self) -> ASGIApp:
        await asyncio.shield(self._started)
        assert self._app is not None
        return self._app

    async def release(self) -> None:
        """Count one user less; the last one shuts the app down and waits for it."""
        self._users -= 1
        if self._users:
            return
        if RunningApp._shared is self:
            RunningApp._shared = None
        await self._inbox.put({"type": "lifespan.shutdown"})
        await asyncio.wait([self._lifespan])

    async def _run(self) -> None:
        try:
            # Opening may load models or start processes: not on the loop.
            self._app = await asyncio.to_thread(self._open_app)
            await self._inbox.put({"type": "lifespan.startup"})
            scope: dict[str, Any] = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
            await self._app(scope, self._inbox.get, self._send)
            self._settle(None)
        except Exception as error:
            self._settle(error)

    async def _send(self, message: Message) -> None:
        if message["type"] == "lifespan.startup.failed":
            raise TinkerError(f"the local server did not start: {message.get('message', '')}")
        if message["type"] == "lifespan.startup.complete":
            self._settle(None)

    def _settle(self, error: Exception | None) -> None:
        if self._started.done():
            if error is not None:
                logger.error("the local server stopped: %s", error, exc_info=error)
            return
        if error is None:
            self._started.set_result(None)
        else:
            self._started.set_exception(error)
            self._started.exception()  # retrieved here too, in case nobody is waiting


def _open_embedded() -> ASGIApp:
    try:
        module = importlib.import_module(EMBEDDED_SERVER)
    except ImportError as error:
        raise _not_installed(error) from error
    try:
        return cast(ASGIApp, module.open_app())
    except ImportError as error:
        raise _not_installed(error) from error
    except module.HomeTaken as taken:
        raise HomeHeld(str(taken), module.socket_of(taken)) from taken
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise TinkerError(
            f"The embedded server cannot start: {error.filename} cannot be used "
            f"({error.strerror}): name another home with TINKEX_HOME"
        ) from error
    except OSError as error:
        raise TinkerError(
            f"The embedded server cannot start: {error.strerror or error}; its home is "
            "$TINKEX_HOME, or ~/.tinkex"
        ) from error
    except Exception as error:  # the server floor has errors of its own, which say what is wrong
        raise TinkerError(f"The embedded server cannot start: {error}") from error


def _not_installed(error: ImportError) -> TinkerError:
    return TinkerError(
        f'base_url="local" needs the embedded server, which cannot be imported ({error}). '
        "Install it with: pip install 'tinkex[server]'"
    )
