"""A server that does not answer is named in the log, once in a while, until it does."""

import time
from dataclasses import replace

import pytest

from support.clients import QUICK
from tinkex.client.api import call_policies
from tinkex.client.api.api import Api
from tinkex.client.api.outage import Outage
from tinkex.client.http import HttpResponse, TransportError
from tinkex.client.settings.config import Config
from tinkex.client.settings.timings import Timings
from tinkex.client.transport.scripted import ScriptedTransport


def test_a_short_gap_is_not_mentioned_and_a_long_one_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    outage = Outage("http://h", log_after=2.0, log_interval=60.0)
    outage.failed(100.0, "refused")
    outage.over()
    assert caplog.messages == []
    for clock[0] in (100.0, 101.0, 103.0, 110.0, 163.0, 170.0):
        outage.failed(100.0, "error for url: Connection refused")
    outage.over()
    assert caplog.messages == [
        "http://h has not answered for 3 s (Connection refused); still trying. "
        "Is the server running?",
        "http://h has not answered for 63 s (Connection refused); still trying. "
        "Is the server running?",
        "http://h answers again after 70 s",
    ]


async def test_every_request_counts(caplog: pytest.LogCaptureFixture) -> None:
    broken, good = TransportError("no route: tml-secret-key"), HttpResponse(200, {}, b"{}")
    timings = replace(QUICK, outage_log_after=0.0)
    config = Config.resolve(base_url="http://h", api_key="tml-k", timings=timings, environ={})
    api = Api(config, ScriptedTransport([broken, broken, good]))
    await api.send("GET", "/x", call_policies.REST)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 2
    assert "tml-secret-key" not in caplog.text
    await api.aclose()


async def test_a_call_that_is_put_off_for_long_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """A key with as many runs as it may have live: whoever made one more waited without a word."""
    detail = b'{"detail": "256 training runs are live for this key: finish some sessions"}'
    full, good = HttpResponse(429, {}, detail), HttpResponse(200, {}, b"{}")
    timings = replace(QUICK, put_off_log_after=0.0)
    config = Config.resolve(base_url="http://h", api_key="tml-k", timings=timings, environ={})
    api = Api(config, ScriptedTransport([full, full, full, good]))
    await api.send("POST", "/x", call_policies.CREATE_MODEL, body=b"{}")
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1
    assert said[0].startswith("http://h has put a call off for 0 s (")
    assert "256 training runs are live for this key: finish some sessions" in said[0]
    await api.aclose()


def test_a_person_at_a_terminal_is_told_by_the_command_instead() -> None:
    assert Timings.impatient().outage_log_after > Timings().outage_log_after
