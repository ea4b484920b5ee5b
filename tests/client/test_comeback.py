"""A server that is back is noticed at once, by whatever waits for it, and is not hammered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from support.clients import QUICK
from tinkex.client.api import call_policies, comeback
from tinkex.client.api.api import Api
from tinkex.client.api.comeback import Comeback
from tinkex.client.api.outage import Outage
from tinkex.client.api.retry import RetryConfig, RetryHandler
from tinkex.client.concurrency.budgets import ByteBudget
from tinkex.client.http import HttpRequest, HttpResponse, TransportError
from tinkex.client.session.polling import Poller, ResultKind
from tinkex.client.settings.config import Config
from tinkex.client.transport.scripted import ScriptedTransport
from tinkex.wire import routes

FOR_EVER = 3600.0
OUTLASTED = replace(
    QUICK,
    inner_delay_first=FOR_EVER,
    inner_delay_max=FOR_EVER,
    poll_delay_first=FOR_EVER,
    poll_delay_max=FOR_EVER,
    outer_delay_first=FOR_EVER,
    outer_delay_max=FOR_EVER,
    outage_probe_delay=0.001,
)
GOOD = HttpResponse(200, {"content-type": "application/json"}, b"{}")
DOWN = TransportError("connection refused")


class Flaky:
    """A server that is down for the first `probes` signs of life asked of it."""

    def __init__(self, probes: int = 3) -> None:
        self.probes = probes
        self.transport = ScriptedTransport(self._answer)

    def _answer(self, request: HttpRequest) -> HttpResponse | Exception:
        if request.url.endswith(routes.HEALTH):
            self.probes -= 1
        return DOWN if self.probes >= 0 else GOOD


@asynccontextmanager
async def client_of(server: Flaky) -> AsyncIterator[Api]:
    config = Config.resolve(base_url="http://h", api_key="tml-k", timings=OUTLASTED, environ={})
    api = Api(config, server.transport)
    yield api
    await api.aclose()


@pytest.mark.parametrize(
    "purpose", [call_policies.REST, call_policies.SAVE], ids=["inner", "outer"]
)
async def test_a_retry_goes_out_as_soon_as_the_server_is_back(
    purpose: call_policies.Purpose,
) -> None:
    async with client_of(Flaky()) as api, asyncio.timeout(10):
        assert await api.send("GET", "/x", purpose) is GOOD


async def test_a_result_is_asked_for_as_soon_as_the_server_is_back() -> None:
    async with client_of(Flaky()) as api, asyncio.timeout(10):
        kind = ResultKind("Anything", from_json=lambda value: value)
        assert await Poller(api, ByteBudget(1 << 20)).result("id", kind) == {}


async def test_a_sample_is_sent_again_as_soon_as_the_server_is_back() -> None:
    async with client_of(Flaky()) as api, asyncio.timeout(10):
        patient = RetryConfig(retry_delay_base=FOR_EVER, retry_delay_max=FOR_EVER)
        handler = RetryHandler(patient)
        handler.pause = api.pause
        assert await handler.execute(api.send, "GET", "/x", call_policies.SAMPLE) is GOOD


async def test_any_answered_request_ends_the_pauses_of_all() -> None:
    outage = Outage("http://h", FOR_EVER, FOR_EVER)
    waits = Comeback(outage, _never, FOR_EVER, FOR_EVER)
    outage.failed(0.0, "refused")
    pausing = [asyncio.create_task(waits.pause(FOR_EVER)) for _ in range(20)]
    await asyncio.sleep(0)
    waits.answered()
    await asyncio.wait_for(asyncio.gather(*pausing), 10)
    await waits.aclose()


async def test_one_probe_at_a_time_however_many_wait() -> None:
    asked = most = under_way = 0

    async def probe() -> None:
        nonlocal asked, most, under_way
        asked, under_way = asked + 1, under_way + 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if asked < 5:
            raise DOWN

    outage = Outage("http://h", FOR_EVER, FOR_EVER)
    waits = Comeback(outage, probe, 0.0, 0.0)
    outage.failed(0.0, "refused")
    await asyncio.wait_for(asyncio.gather(*(waits.pause(FOR_EVER) for _ in range(50))), 10)
    assert (asked, most) == (5, 1)
    assert not outage.is_on


async def test_probes_that_prove_nothing_grow_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy may answer for a server that it cannot reach itself."""
    delays: list[float] = []
    monkeypatch.setattr(comeback, "jittered", _recording(delays))
    outage = Outage("http://h", FOR_EVER, FOR_EVER)
    waits = Comeback(outage, _at_once, 0.5, 3.0)

    async def fail() -> None:
        outage.failed(0.0, "reset")
        await asyncio.wait_for(waits.pause(FOR_EVER), 10)

    for _ in range(4):
        await fail()
    waits.answered()
    await fail()
    assert delays == [0.5, 1.0, 2.0, 3.0, 0.5]


async def test_nobody_waiting_means_nobody_asks() -> None:
    outage = Outage("http://h", FOR_EVER, FOR_EVER)
    waits = Comeback(outage, _never, 0.2, 0.2)
    await waits.pause(0.0)
    assert waits._probing is None
    outage.failed(0.0, "refused")
    pausing = asyncio.create_task(waits.pause(FOR_EVER))
    await asyncio.sleep(0)
    pausing.cancel()
    assert waits._probing is not None
    await asyncio.wait_for(waits._probing, 60)


def _recording(delays: list[float]) -> Callable[[float], float]:
    def jittered(delay: float) -> float:
        delays.append(delay)
        return 0.0

    return jittered


async def _at_once() -> None: ...


async def _never() -> None:
    raise AssertionError("nobody waits")
