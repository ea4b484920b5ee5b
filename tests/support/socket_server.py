"""A real HTTP/1.1 server on a loopback socket that can misbehave on demand.

It parses requests, hands them to a handler, and writes what the handler answers; a fault queued for
a path changes how the next answers to it are written. Knows nothing about any protocol above HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        head = [f"HTTP/1.1 {self.status} X", f"content-length: {len(self.body)}"]
        if self.content_type:
            head.append(f"content-type: {self.content_type}")
        head += [f"{name}: {value}" for name, value in self.headers.items()]
        return ("\r\n".join(head) + "\r\n\r\n").encode() + self.body


# ---- faults: each takes the place of, or damages, one normal answer


@dataclass(frozen=True)
class Answer:
    """This instead of the handler's answer; the handler never sees the request."""

    reply: Reply


@dataclass(frozen=True)
class Cut:
    """Close the connection after this many bytes of the real answer."""

    after: int


@dataclass(frozen=True)
class Stall:
    """Say nothing for this long, then answer."""

    seconds: float


@dataclass(frozen=True)
class Drip:
    """Write the real answer in small pieces with pauses."""

    size: int = 8
    pause: float = 0.005


@dataclass(frozen=True)
class Damage:
    """Change the real answer before it is written."""

    change: Callable[[Reply], Reply]


@dataclass(frozen=True)
class Refuse:
    """Close the connection without reading the request's meaning."""


Fault = Answer | Cut | Stall | Drip | Damage | Refuse
Handler = Callable[[Received], Awaitable[Reply]]


def status(code: int, body: bytes = b'{"detail":"on purpose"}', **headers: str) -> Answer:
    return Answer(Reply(code, body, headers={k.replace("_", "-"): v for k, v in headers.items()}))


class SocketServer:
    """Runs on a thread of its own between ``start`` and ``stop``; use it as a context manager."""

    def __init__(
        self, handler: Handler, observe: Callable[[Received], None] = lambda _: None
    ) -> None:
        self._handler = handler
        self._observe = observe
        self._faults: defaultdict[tuple[str, bytes], deque[Fault]] = defaultdict(deque)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="socket-server", daemon=True)
        self._ready = threading.Event()
        self._stopping: asyncio.Event
        self._connections: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.bugs: list[Exception] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def fail(self, path: str, *faults: Fault, when: bytes = b"") -> None:
        """Apply these, in order, to the next requests whose path ends so and whose body has it."""
        self._faults[path, when].extend(faults)

    def __enter__(self) -> SocketServer:
        self._thread.start()
        self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(60)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for writer in tuple(self._connections):
            writer.transport.abort()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await read_request(reader)
        self._observe(request)
        fault = self._next_fault(request)
        if isinstance(fault, Refuse):
            return False
        if isinstance(fault, Answer):
            reply = fault.reply
        else:
            reply = await self._handled(request)
        return await self._write(writer, reply, fault)

    async def _handled(self, request: Received) -> Reply:
        try:
            return await self._handler(request)
        except Exception as error:  # a bug in the test's server: visible, and never a hang
            self.bugs.append(error)
            return Reply(599, repr(error).encode(), "text/plain")

    async def _write(self, writer: asyncio.StreamWriter, reply: Reply, fault: Fault | None) -> bool:
        if isinstance(fault, Damage):
            reply = fault.change(reply)
        data = reply.encoded()
        if isinstance(fault, Stall):
            await asyncio.sleep(fault.seconds)
        if isinstance(fault, Drip):
            for start in range(0, len(data), fault.size):
                writer.write(data[start : start + fault.size])
                await writer.drain()
                await asyncio.sleep(fault.pause)
            return True
        writer.write(data[: fault.after] if isinstance(fault, Cut) else data)
        await writer.drain()
        return not isinstance(fault, Cut)

    def _next_fault(self, request: Received) -> Fault | None:
        for (suffix, content), queue in self._faults.items():
            if queue and request.path.endswith(suffix) and content in request.body:
                return queue.popleft()
        return None


async def read_request(reader: asyncio.StreamReader) -> Received:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.lower()] = value.strip()
    path, _, query = target.partition("?")
    length = int(headers.get("content-length", "0"))
    body = await reader.readexactly(length) if length else b""
    return Received(method, path, query, headers, body)
