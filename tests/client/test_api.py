"""What every call carries and obeys, seen through a scripted transport."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

import tinkex
from support.clients import QUICK
from support.protocol_server import jwt
from tinkex.client.api import call_policies
from tinkex.client.api.api import Api
from tinkex.client.errors import CircuitOpenError
from tinkex.client.events.bus import EventBus
from tinkex.client.http import HttpRequest, HttpResponse, TransportError, TransportTimeout
from tinkex.client.settings.breaker import BreakerConfig
from tinkex.client.settings.config import Config
from tinkex.client.transport.scripted import ScriptedTransport

OK = HttpResponse(200, {}, b"{}")


def api_for(transport: ScriptedTransport, **overrides: Any) -> Api:
    values = {"api_key": "tml-k", "timings": QUICK, "events": EventBus(), **overrides}
    return Api(Config.resolve(base_url="http://h/prefix", environ={}, **values), transport)


async def test_a_request_carries_what_the_protocol_wants() -> None:
    transport = ScriptedTransport([OK, OK])
    api = api_for(transport, headers={"X-Team": "a"})
    await api.send("POST", "/api/v1/x", call_policies.TRAINING, body=b"{}")
    await api.send("GET", "/api/v1/y", call_policies.REST, params={"limit": 3, "none": None})
    post, get = transport.requests
    assert post.url == "http://h/prefix/api/v1/x"
    assert post.headers["X-API-Key"] == "tml-k"
    assert post.headers["X-Team"] == "a"
    assert post.headers["Content-Type"] == "application/json"
    assert post.headers["X-Idempotency-Key"]
    assert post.headers["User-Agent"].startswith("tinkex/")
    assert get.url == "http://h/prefix/api/v1/y?limit=3"
    assert "X-Idempotency-Key" not in get.headers
    assert "Content-Type" not in get.headers
    assert "traceparent" not in get.headers


async def test_inner_retries_keep_the_idempotency_key_and_outer_ones_change_it() -> None:
    busy = HttpResponse(503, {}, b"")
    once = Config.resolve(environ={}).timings.__class__(
        **{**QUICK.__dict__, "inner_retries": 1, "outer_window": 60.0}
    )
    transport = ScriptedTransport([busy, busy, busy, OK])
    api = api_for(transport, timings=once)
    await api.send("POST", "/x", call_policies.TRAINING, body=b"{}")
    keys = [r.headers["X-Idempotency-Key"] for r in transport.requests]
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]
    assert keys[0] != keys[2]
    assert [r.headers["x-stainless-retry-count"] for r in transport.requests] == ["0", "1"] * 2


async def test_a_given_idempotency_key_stays_over_both_layers() -> None:
    busy = HttpResponse(503, {}, b"")
    transport = ScriptedTransport([busy] * 15 + [OK])
    await api_for(transport).send(
        "POST", "/x", call_policies.REST, body=b"{}", idempotency_key="mine"
    )
    assert {r.headers["X-Idempotency-Key"] for r in transport.requests} == {"mine"}


@pytest.mark.parametrize(
    "purpose",
    [
        call_policies.SAMPLE,
        call_policies.POLL,
        call_policies.HEARTBEAT,
        call_policies.DYNAMIC_REFRESH,
    ],
    ids=lambda p: p.name,
)
async def test_calls_that_are_never_repeated(purpose: call_policies.Purpose) -> None:
    for answer in (HttpResponse(503), TransportError("cut"), TransportTimeout("slow")):
        transport = ScriptedTransport([answer, OK])
        with pytest.raises(tinkex.APIError):
            await api_for(transport).send("POST", "/x", purpose, body=b"{}")
        assert len(transport.requests) == 1


async def test_retries_end_and_the_last_error_surfaces() -> None:
    impatient = QUICK.__class__(**{**QUICK.__dict__, "inner_retries": 2, "outer_window": 0.0})
    transport = ScriptedTransport(lambda _: HttpResponse(500, {}, b'{"detail":"x"}'))
    with pytest.raises(tinkex.InternalServerError):
        await api_for(transport, timings=impatient).send("GET", "/x", call_policies.REST)
    assert len(transport.requests) == 3


REPEATED = [call_policies.REST, call_policies.TRAINING, call_policies.SAVE, call_policies.SESSION]
ONCE = [call_policies.SAMPLE, call_policies.POLL, call_policies.HEARTBEAT]


@pytest.mark.parametrize("purpose", [*REPEATED, *ONCE], ids=lambda p: p.name)
async def test_an_open_circuit_refuses_every_kind_of_call_at_once(
    purpose: call_policies.Purpose,
) -> None:
    transport = ScriptedTransport([TransportError("cut")])
    api = api_for(transport, breaker=BreakerConfig(failures=1, cooldown=3600.0))
    async with asyncio.timeout(30):
        with pytest.raises(tinkex.APIConnectionError):
            await api.send("POST", "/x", purpose, body=b"{}")
        with pytest.raises(CircuitOpenError):
            await api.send("POST", "/x", purpose, body=b"{}")
        with pytest.raises(CircuitOpenError):
            await anext(aiter(api.stream_lines("/x", b"{}", purpose)))
    assert len(transport.requests) == 1


async def test_an_open_circuit_does_not_wait_for_the_limiter() -> None:
    busy = HttpResponse(429, {"retry-after": "50"}, b"")
    transport = ScriptedTransport([busy, HttpResponse(500)])
    # A key of its own: whoever shares one waits out the fifty seconds too.
    circuit = BreakerConfig(failures=1, cooldown=3600.0)
    api = api_for(transport, api_key="tml-held", breaker=circuit)
    with pytest.raises(tinkex.RateLimitError):
        await api.send("POST", "/x", call_policies.SAMPLE, body=b"{}")
    api._admission.failed(0.0, "cut")
    async with asyncio.timeout(30):
        with pytest.raises(CircuitOpenError):
            await api.send("POST", "/x", call_policies.SAMPLE, body=b"{}")


@pytest.mark.parametrize("status", [402, 409, 429, 500, 503])
@pytest.mark.parametrize("purpose", REPEATED, ids=lambda p: p.name)
async def test_a_server_that_wants_no_retry_gets_none(
    purpose: call_policies.Purpose, status: int
) -> None:
    refusal = HttpResponse(status, {"x-should-retry": "false"}, b"{}")
    transport = ScriptedTransport([refusal, OK])
    with pytest.raises(tinkex.APIStatusError):
        await api_for(transport).send("POST", "/x", purpose, body=b"{}")
    assert len(transport.requests) == 1


async def test_a_server_that_wants_a_retry_gets_one() -> None:
    again = HttpResponse(404, {"x-should-retry": "true"}, b"{}")
    transport = ScriptedTransport([*[again] * 15, OK])
    assert (await api_for(transport).send("GET", "/x", call_policies.REST)).status == 200


async def test_both_layers_wait_with_jitter_and_as_long_as_the_server_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.random", lambda: 1.0)
    timings = replace(QUICK, inner_retries=1, outer_window=60.0)
    asked = HttpResponse(503, {"retry-after-ms": "3"}, b"")
    transport = ScriptedTransport([*[HttpResponse(503)] * 4, asked, asked, OK])
    api = api_for(transport, timings=timings)
    with api.bus.capture("tinkex.retry.scheduled") as seen:
        await api.send("GET", "/x", call_policies.REST)
    first, outer = timings.inner_delay_first * 0.75, timings.outer_delay_first * 0.75
    told = [(event.data["layer"], pytest.approx(event.data["delay"])) for event in seen]
    assert told == [
        ("inner", first),
        ("outer", outer),
        ("inner", first),
        ("outer", outer * 2),
        ("inner", 0.003),
        ("outer", 0.003),
    ]


async def test_events_tell_the_story_of_a_request() -> None:
    transport = ScriptedTransport([TransportError("cut"), OK])
    api = api_for(transport)
    with api.bus.capture() as seen:
        await api.send("GET", "/x", call_policies.REST)
    names = [event.name.removeprefix("tinkex.") for event in seen]
    assert names == [
        "http.request.start",
        "http.request.exception",
        "retry.scheduled",
        "http.request.start",
        "http.request.stop",
    ]
    assert seen[-1].data == {"method": "GET", "path": "/x", "status": 200}
    assert seen[-1].duration is not None


async def test_trace_context_travels_when_asked_for() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    transport = ScriptedTransport([OK])
    api = api_for(transport, trace_context=lambda: parent)
    await api.send("GET", "/x", call_policies.REST)
    assert transport.requests[0].headers["traceparent"] == parent


async def test_deprecation_notes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    noted = HttpResponse(
        200, {"x-deprecation-note": "use y", "x-deprecation-level": "error"}, b"{}"
    )
    await api_for(ScriptedTransport([noted])).send("GET", "/x", call_policies.REST)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("ERROR", "use y")]


# ---- credentials


def answering(token: str) -> Any:
    def script(request: HttpRequest) -> HttpResponse:
        if request.url.endswith("/auth/token"):
            return HttpResponse(200, {}, json.dumps({"jwt": token}).encode())
        return OK

    return script


async def exchanging(api: Api) -> Api:
    api.tokens.configure(exchange=api.exchange_token, command_only=False)
    return api


async def test_a_key_is_traded_for_a_token_once() -> None:
    token = jwt(sub="me")
    transport = ScriptedTransport(answering(token))
    api = await exchanging(api_for(transport))
    await asyncio.gather(*[api.send("GET", "/x", call_policies.REST) for _ in range(5)])
    exchange, *rest = transport.requests
    assert exchange.headers["X-API-Key"] == "tml-k"
    assert {r.headers["X-API-Key"] for r in rest} == {token}
    assert len(rest) == 5


async def test_a_token_about_to_expire_is_renewed_and_a_failed_renewal_keeps_the_old() -> None:
    import time

    short = jwt(exp=time.time() + 30)
    answers = iter([HttpResponse(200, {}, json.dumps({"jwt": short}).encode())])
    transport = ScriptedTransport(
        lambda r: next(answers, HttpResponse(401)) if r.url.endswith("token") else OK
    )
    timings = QUICK.__class__(**{**QUICK.__dict__, "token_refresh_needed": 60.0})
    api = await exchanging(api_for(transport, timings=timings))
    await api.send("GET", "/x", call_policies.REST)
    await api.send("GET", "/x", call_policies.REST)
    assert transport.requests[-1].headers["X-API-Key"] == short
    assert sum(r.url.endswith("token") for r in transport.requests) == 2


async def test_the_first_exchange_failing_surfaces() -> None:
    transport = ScriptedTransport(lambda r: HttpResponse(401, {}, b'{"detail":"no"}'))
    api = await exchanging(api_for(transport))
    with pytest.raises(tinkex.AuthenticationError):
        await api.send("GET", "/x", call_policies.REST)


async def test_a_jwt_given_as_key_is_used_as_it_is() -> None:
    token = jwt(sub="me")
    transport = ScriptedTransport([OK])
    api = await exchanging(api_for(transport, api_key=token))
    await api.send("GET", "/x", call_policies.REST)
    assert transport.requests[0].headers["X-API-Key"] == token


async def test_a_credential_command_is_run_for_each_exchange() -> None:
    transport = ScriptedTransport(answering(jwt(sub="me")))
    api = api_for(transport, api_key=None, credential_command="echo tml-from-command")
    await exchanging(api)
    await api.send("GET", "/x", call_policies.REST)
    assert transport.requests[0].headers["X-API-Key"] == "tml-from-command"


@pytest.mark.parametrize(
    ("command", "says"), [("true", "printed nothing"), ("exit 3", "exit status 3")]
)
async def test_a_broken_credential_command_is_explained(command: str, says: str) -> None:
    api = api_for(ScriptedTransport([]), api_key=None, credential_command=command)
    with pytest.raises(tinkex.TinkerError, match=says):
        await (await exchanging(api)).send("GET", "/x", call_policies.REST)


async def test_a_command_needs_a_server_that_exchanges() -> None:
    api = api_for(ScriptedTransport([]), api_key=None, credential_command="echo tml-x")
    with pytest.raises(tinkex.TinkerError, match="does not exchange"):
        api.tokens.configure(exchange=None, command_only=False)


async def test_no_key_anywhere_names_the_three_ways(tmp_path: Any) -> None:
    api = api_for(ScriptedTransport([]), api_key=None, credentials_path=tmp_path / "none.json")
    with pytest.raises(tinkex.TinkerError, match=r"api_key.*TINKER_API_KEY.*auth login"):
        await api.send("GET", "/x", call_policies.REST)
