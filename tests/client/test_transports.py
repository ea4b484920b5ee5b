"""The transports: over sockets with and without pyqwest, and into an ASGI app in this process."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

import tinkex
from support.clients import quick_config
from support.socket_server import Cut, Received, Reply, SocketServer, Stall
from tinkex.client.errors import TinkerError
from tinkex.client.http import HttpRequest, Refused, TransportError, TransportTimeout
from tinkex.client.session.holder import _make_transport
from tinkex.client.transport import plain
from tinkex.client.transport.local import LocalTransport
from tinkex.client.transport.network import NetworkTransport
from tinkex.client.transport.plain import PlainTransport
from tinkex.client.transport.redirects import origin
from tinkex.server.storage.home import Home

BODY = b"0123456789" * 1000


class Chunked(Reply):
    def encoded(self) -> bytes:
        head = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\nx-a: b\r\n\r\n"
        return head + b"5;ext=1\r\n01234\r\n3\r\n567\r\n0\r\nTrailer: x\r\n\r\n"


class UntilClosed(Reply):
    def encoded(self) -> bytes:
        return b"HTTP/1.0 200 X\r\nconnection: close\r\n\r\nto the end"


async def answer(request: Received) -> Reply:
    match request.path:
        case "/gzip":
            return Reply(200, gzip.compress(BODY), "t", {"content-encoding": "gzip"})
        case "/zstd":
            packed = zstandard.ZstdCompressor().compress(BODY)
            return Reply(200, packed, "t", {"content-encoding": "zstd"})
        case "/chunked":
            return Chunked()
        case "/closed":
            return UntilClosed()
        case "/empty":
            return Reply(204, b"", "")
        case "/moved":
            return Reply(302, b"", headers={"location": "/echo"})
        case "/loop":
            return Reply(302, b"", headers={"location": "/loop"})
        case "/status":
            return Reply(503, b"busy")
    shown = f"{request.method} {request.path}?{request.query} {request.body.decode()}"
    return Reply(200, shown.encode(), headers={"X-Seen": request.headers.get("x-mine", "")})


@pytest.fixture
def server():
    with SocketServer(answer) as running:
        yield running


KINDS: list[Any] = [NetworkTransport, PlainTransport]


@pytest.fixture(params=KINDS, ids=["pyqwest", "plain"])
async def transport(request: pytest.FixtureRequest, server: SocketServer):
    made = request.param(quick_config(server.url, max_response_bytes=50_000))
    yield made
    await made.aclose()


async def get(transport: Any, url: str, **fields: Any) -> Any:
    return await transport.request(HttpRequest("GET", url, {}, timeout=60.0, **fields))


async def test_requests_arrive_whole_and_answers_come_back(
    transport: Any, server: SocketServer
) -> None:
    request = HttpRequest("POST", f"{server.url}/echo?a=1", {"X-Mine": "me"}, b"body", timeout=60.0)
    response = await transport.request(request)
    assert response.content == b"POST /echo?a=1 body"
    assert response.headers["x-seen"] == "me"
    delete = await transport.request(HttpRequest("DELETE", f"{server.url}/echo", {}, timeout=60.0))
    assert delete.content == b"DELETE /echo? "


async def test_bodies_in_every_form(transport: Any, server: SocketServer) -> None:
    assert (await get(transport, f"{server.url}/gzip")).content == BODY
    assert (await get(transport, f"{server.url}/zstd")).content == BODY
    assert (await get(transport, f"{server.url}/chunked")).content == b"01234567"
    assert (await get(transport, f"{server.url}/empty")).status == 204
    assert (await get(transport, f"{server.url}/status")).status == 503
    assert (await get(transport, f"{server.url}/moved")).content == b"GET /echo? "


async def test_connections_are_kept(transport: Any, server: SocketServer) -> None:
    for _ in range(5):
        await get(transport, f"{server.url}/echo")
    assert server.open_connections == 1


async def test_trouble_is_a_transport_error(transport: Any, server: SocketServer) -> None:
    for fault in (Cut(after=0), Cut(after=8), Cut(after=60)):
        server.fail("/echo", fault)
        with pytest.raises(TransportError):
            await get(transport, f"{server.url}/echo")
    with pytest.raises(TransportError):
        await get(transport, f"{server.url}/loop")
    with pytest.raises(TransportError):
        await get(transport, "http://127.0.0.1:9/")
    assert (await get(transport, f"{server.url}/echo")).status == 200


async def test_the_reason_is_in_words(server: SocketServer) -> None:
    """They are logged while a client waits: "…has not answered for 5 s (connection refused)"."""
    transport = PlainTransport(quick_config(server.url))
    for url, said in (
        ("http://127.0.0.1:9/", "connection refused"),
        ("http://no-such-host.invalid/", "the host name is not known"),
    ):
        with pytest.raises(TransportError, match=rf"^{said}$"):
            await get(transport, url)
    for fault in (Cut(after=0), Cut(after=60)):
        server.fail("/echo", fault)
        with pytest.raises(TransportError, match=r"^the connection was cut$"):
            await get(transport, f"{server.url}/echo")
    await transport.aclose()


async def test_time_runs_out(transport: Any, server: SocketServer) -> None:
    server.fail("/echo", Stall(5.0))
    with pytest.raises(TransportTimeout):
        await transport.request(HttpRequest("GET", f"{server.url}/echo", {}, timeout=0.05))


async def test_a_body_over_the_limit_is_not_read(transport: Any, server: SocketServer) -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    server.fail("/echo", *_answers(Reply(200, b"x" * 60_000)))
    server.fail("/gzip", *_answers(Reply(200, bomb, "t", {"content-encoding": "gzip"})))
    for path in ("/echo", "/gzip"):
        with pytest.raises(TransportError, match="max_response_bytes"):
            await get(transport, f"{server.url}{path}")
    assert (await get(transport, f"{server.url}/echo")).status == 200


def _answers(reply: Reply) -> list[Any]:
    from support.socket_server import Answer

    return [Answer(reply)]


async def test_the_plain_transport_reads_to_the_end(server: SocketServer) -> None:
    server.fail("/closed", Cut(after=1_000_000))
    transport = PlainTransport(quick_config(server.url))
    assert (await get(transport, f"{server.url}/closed")).content == b"to the end"
    await transport.aclose()


async def test_a_connection_left_alone_for_long_is_not_trusted(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "IDLE_SECONDS", 0.0)
    transport = PlainTransport(quick_config(server.url))
    first, second = [await get(transport, f"{server.url}/echo") for _ in range(2)]
    assert first.content == second.content
    assert len(transport._idle[origin(server.url)]) == 1, "the new one stands in for the old one"
    await transport.aclose()


def test_only_an_address_with_tls_or_a_way_through_a_proxy_needs_the_network_library() -> None:
    made = {
        (url, proxy): type(_make_transport(quick_config(url, proxy=proxy)))
        for url in ("http://10.0.0.1:8000", "https://service.example")
        for proxy in (None, "http://proxy.example:3128")
    }
    assert [key for key, kind in made.items() if kind is PlainTransport] == [
        ("http://10.0.0.1:8000", None)
    ]


async def test_requests_go_through_a_proxy(server: SocketServer) -> None:
    config = quick_config("http://service.example", proxy=server.url)
    transport = NetworkTransport(config)
    response = await get(transport, "http://service.example/x")
    assert b"GET http://service.example/x" in response.content
    await transport.aclose()
    with pytest.raises(TransportError, match="spawn"):
        PlainTransport(config)


async def test_only_the_configuration_names_a_proxy(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    transport = NetworkTransport(quick_config(server.url))
    assert (await get(transport, f"{server.url}/echo")).status == 200
    await transport.aclose()


# ---- in this process


Scope = dict[str, Any]


class App:
    """A tiny ASGI app that remembers its life."""

    def __init__(self) -> None:
        self.life: list[str] = []

    async def __call__(
        self,
        scope: Scope,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                assert (await receive())["type"] == f"lifespan.{event}"
                self.life.append(event)
                await send({"type": f"lifespan.{event}.complete"})
            return
        body = (await receive())["body"]
        if scope["path"] == "/crash":
            raise ValueError("bug")
        if scope["path"] == "/slow":
            await asyncio.sleep(5)
        status = 404 if scope["path"] == "/missing" else 200
        await send({"type": "http.response.start", "status": status, "headers": [(b"X-A", b"b")]})
        for piece in (scope["method"].encode() + b" ", scope["query_string"], b" ", body):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def test_an_app_is_started_used_and_shut_down() -> None:
    app = App()
    transport = LocalTransport(lambda: app)
    request = HttpRequest("POST", "http://local.tinkex/x?q=1", {"A": "b"}, b"body", timeout=60.0)
    response = await transport.request(request)
    assert response.content == b"POST q=1 body"
    assert response.headers["x-a"] == "b"
    pieces = [piece async for piece in transport.stream(request)]
    assert b"".join(pieces) == b"POST q=1 body"
    with pytest.raises(Refused):
        [p async for p in transport.stream(HttpRequest("GET", "http://l/missing", {}))]
    await transport.aclose()
    assert app.life == ["startup", "shutdown"]
    with pytest.raises(TransportError, match="closed"):
        await transport.request(request)


async def test_a_crash_and_a_stall_in_the_app_are_transport_errors() -> None:
    transport = LocalTransport(App)
    with pytest.raises(TransportError, match="ValueError"):
        await transport.request(HttpRequest("GET", "http://l/crash", {}, timeout=60.0))
    with pytest.raises(TransportTimeout):
        await transport.request(HttpRequest("GET", "http://l/slow", {}, timeout=0.05))
    await transport.aclose()


async def test_an_app_that_cannot_open_says_why() -> None:
    def broken() -> Any:
        raise TinkerError("no model")

    transport = LocalTransport(broken)
    for _ in range(2):
        with pytest.raises(TinkerError, match="no model"):
            await transport.request(HttpRequest("GET", "http://l/x", {}, timeout=60.0))
    await transport.aclose()


def test_a_home_in_use_is_an_error_of_the_sdk_and_works_once_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKEX_HOME", str(tmp_path))
    monkeypatch.setenv("TINKEX_MODELS", "tinkex/tiny-llama")
    holder = Home(tmp_path, "http://127.0.0.1:8000")
    with tinkex.ServiceClient(base_url="local") as first:
        with pytest.raises(
            TinkerError, match=r"in use by process \d+, a server at http://127.0.0.1:8000"
        ):
            first.get_server_capabilities()
        holder.release()
        with tinkex.ServiceClient(base_url="local") as second:
            names = [m.model_name for m in second.get_server_capabilities().supported_models]
    assert names == ["tinkex/tiny-llama"]
