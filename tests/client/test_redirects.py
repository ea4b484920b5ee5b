"""A secret stays with the origin it is for, whatever a server's redirects say."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import tinkex
from support.clients import quick_config
from support.socket_server import Received, Reply, SocketServer
from tinkex.client.http import HttpRequest, Refused, TransportError
from tinkex.client.transport.network import NetworkTransport
from tinkex.client.transport.plain import PlainTransport
from tinkex.client.transport.redirects import origin

SECRETS = {
    "X-API-Key": "tml-secret",
    "Authorization": "Bearer secret",
    "Cookie": "secret=1",
    "CF-Access-Client-Secret": "secret",
    "X-Tinker-Weights-Access-Token": "tml-secret",
    "traceparent": "00-secret",
    "X-Of-My-Own": "secret",
    "User-Agent": "me",
}


@dataclass
class Place:
    """A server that redirects `/to/<status>` wherever it is told, and remembers who came."""

    target: str = ""
    seen: list[Received] = field(default_factory=list)

    async def answer(self, request: Received) -> Reply:
        self.seen.append(request)
        if "/to/" in request.path:
            status = int(request.path.rpartition("/")[2])
            return Reply(status, b"", headers={"location": self.target})
        return Reply(200, b'{"checkpoints":[]}')


@pytest.fixture
def here() -> Iterator[tuple[Place, str]]:
    place = Place()
    with SocketServer(place.answer) as server:
        yield place, server.url


@pytest.fixture
def elsewhere() -> Iterator[tuple[Place, str]]:
    place = Place()
    with SocketServer(place.answer) as server:
        yield place, server.url


@pytest.fixture(params=[NetworkTransport, PlainTransport], ids=["pyqwest", "plain"])
async def transport(request: pytest.FixtureRequest, here: tuple[Place, str]):
    made = request.param(quick_config(here[1]))
    yield made
    await made.aclose()


Where = tuple[Place, str]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_download_from_another_origin_gets_no_secret(
    transport: Any, here: Where, elsewhere: Where, status: int
) -> None:
    here[0].target = f"{elsewhere[1]}/signed?sig=1"
    request = HttpRequest("GET", f"{here[1]}/to/{status}", SECRETS, timeout=60.0)
    assert (await transport.request(request)).status == 200
    (came,) = elsewhere[0].seen
    assert came.query == "sig=1"
    assert came.headers["user-agent"] == "me"
    assert "secret" not in str(came.headers)


async def test_the_name_of_the_same_machine_is_another_origin(transport: Any, here: Where) -> None:
    here[0].target = here[1].replace("127.0.0.1", "localhost") + "/x"
    await transport.request(HttpRequest("GET", f"{here[1]}/to/302", SECRETS, timeout=60.0))
    assert "secret" not in str(here[0].seen[-1].headers)


async def test_a_way_through_another_origin_and_back_brings_no_secret_back(
    transport: Any, here: Where, elsewhere: Where
) -> None:
    here[0].target, elsewhere[0].target = f"{elsewhere[1]}/to/302", f"{here[1]}/end"
    await transport.request(HttpRequest("GET", f"{here[1]}/to/302", SECRETS, timeout=60.0))
    assert here[0].seen[-1].path == "/end"
    assert "secret" not in str(here[0].seen[-1].headers)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_body_is_not_handed_to_another_origin(
    transport: Any, here: Where, elsewhere: Where, status: int
) -> None:
    here[0].target = f"{elsewhere[1]}/x"
    request = HttpRequest("POST", f"{here[1]}/to/{status}", SECRETS, b"data", timeout=60.0)
    assert (await transport.request(request)).status == status
    with pytest.raises(Refused) as caught:
        await anext(transport.stream(request))
    assert caught.value.response.status == status
    assert elsewhere[0].seen == []


async def test_a_result_elsewhere_is_fetched_without_body_or_secret(
    transport: Any, here: Where, elsewhere: Where
) -> None:
    here[0].target = f"{elsewhere[1]}/result"
    request = HttpRequest("POST", f"{here[1]}/to/303", SECRETS, b"data", timeout=60.0)
    assert [piece async for piece in transport.stream(request)] == [b'{"checkpoints":[]}']
    (came,) = elsewhere[0].seen
    assert (came.method, came.body) == ("GET", b"")
    assert "secret" not in str(came.headers)


@pytest.mark.parametrize(("status", "method"), [(307, "POST"), (308, "POST"), (302, "GET")])
async def test_within_one_origin_everything_goes_along(
    transport: Any, here: Where, status: int, method: str
) -> None:
    here[0].target = "/x"
    request = HttpRequest("POST", f"{here[1]}/to/{status}", SECRETS, b"data", timeout=60.0)
    await transport.request(request)
    came = here[0].seen[-1]
    assert (came.method, came.headers["x-api-key"]) == (method, "tml-secret")
    assert came.body == (b"data" if method == "POST" else b"")


async def test_a_redirect_can_be_the_answer(transport: Any, here: Where) -> None:
    here[0].target = "/x"
    request = HttpRequest("GET", f"{here[1]}/to/302", {}, timeout=60.0, follow_redirects=False)
    answer = await transport.request(request)
    assert (answer.status, answer.headers["location"]) == (302, "/x")


async def test_only_http_is_followed(transport: Any, here: Where) -> None:
    here[0].target = "file:///etc/passwd"
    with pytest.raises(TransportError, match="not HTTP"):
        await transport.request(HttpRequest("GET", f"{here[1]}/to/302", {}, timeout=60.0))


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin("https://a.example/x") == origin("https://A.example:443/y")
    different = ["http://a", "https://a", "https://a:444", "https://b", "https://a.b"]
    assert len({origin(url) for url in different}) == len(different)


def test_the_rest_client_keeps_its_key_and_says_where_it_was_sent(
    elsewhere: Where,
) -> None:
    from support.protocol_server import ProtocolServer
    from support.socket_server import Answer

    with ProtocolServer() as server:
        away = Reply(302, b"", headers={"location": f"{elsewhere[1]}/signed"})
        gone = Reply(308, b"", headers={"location": f"{elsewhere[1]}/new"})
        server.fail("/checkpoints", Answer(away))
        rest = tinkex.RestClient.from_config(quick_config(server.url, key="tml-secret"))
        assert rest.list_checkpoints("run").result(timeout=60).checkpoints == []
        server.fail("/publish", Answer(gone))
        with pytest.raises(tinkex.APIStatusError, match=f"{elsewhere[1]}/new") as caught:
            rest.publish_checkpoint_from_tinker_path("tinker://r/weights/x").result(timeout=60)
        assert caught.value.is_user_error
        assert "secret" not in str([came.headers for came in elsewhere[0].seen])


def test_an_archive_behind_a_redirect_is_a_url_that_needs_no_key(elsewhere: Where) -> None:
    from support.protocol_server import ProtocolServer
    from support.socket_server import Answer

    link = f"{elsewhere[1]}/archive.tar?sig=1"
    until = "Wed, 21 Oct 2026 07:28:00 GMT"
    with ProtocolServer() as server:
        rest = tinkex.RestClient.from_config(quick_config(server.url))
        for headers in ({"location": link, "expires": until}, {"location": link}):
            server.fail("/archive", Answer(Reply(302, b"", headers=headers)))
            path = "tinker://r/sampler_weights/x"
            found = rest.get_checkpoint_archive_url_from_tinker_path(path).result(timeout=60)
            assert found.url == link
            assert (found.expires is None) == ("expires" not in headers)
    assert elsewhere[0].seen == [], "the archive itself is not fetched"


def test_logging_in_does_not_show_the_key_to_another_server(elsewhere: Where) -> None:
    from tinkex.cli.errors import CliError
    from tinkex.cli.outside.key_service import HttpKeyService

    async def away(request: Received) -> Reply:
        return Reply(302, b"", headers={"location": f"{elsewhere[1]}/me"})

    with SocketServer(away) as server, pytest.raises(CliError, match=f"{elsewhere[1]}/me"):
        HttpKeyService(server.url).describe("tml-secret")
    assert elsewhere[0].seen == []
