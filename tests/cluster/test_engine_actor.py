"""An engine on Ray lives as long as a server listens to it."""

from __future__ import annotations

import threading
import time

import pytest

from tinkex.cluster import engine_actor
from tinkex.cluster.engine_actor import EngineActor


class _Ended(BaseException):
    pass


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that an actor has waited, each over at once; its process ends with an exception."""
    waited: list[float] = []

    def end(_: int) -> None:
        raise _Ended

    monkeypatch.setattr(engine_actor.os, "_exit", end)
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    monkeypatch.setattr(engine_actor, "BEAT_S", 0.0)
    return waited


def test_an_engine_that_no_server_listens_to_ends(seconds: list[float]) -> None:
    actor = EngineActor()
    actor.receive()
    with pytest.raises(_Ended):
        actor._end_unheard()
    assert len(seconds) == engine_actor.UNHEARD_S + 1


def test_an_engine_goes_on_as_long_as_a_server_listens(
    seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that listens only now and then."""
    actor = EngineActor()

    def sleep(second: float) -> None:
        seconds.append(second)
        if len(seconds) % (engine_actor.UNHEARD_S - 1) == 0 and len(seconds) < 1000:
            actor.receive()

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(_Ended):
        actor._end_unheard()
    assert len(seconds) > 1000
