"""An engine on Ray lives as long as a server listens to it."""

from __future__ import annotations

import subprocess
import sys

from tinkex.cluster.engine_actor import UNHEARD_S, Listeners


def test_an_engine_that_no_server_listens_to_any_more_ends() -> None:
    seconds: list[float] = []
    listeners = Listeners(seconds.append)
    listeners.note()
    listeners.wait_until_gone()
    assert len(seconds) == UNHEARD_S + 1


def test_an_engine_goes_on_as_long_as_a_server_listens() -> None:
    """Also to one that listens only now and then."""
    seconds: list[float] = []

    def sleep(second: float) -> None:
        seconds.append(second)
        if len(seconds) % (UNHEARD_S - 1) == 0 and len(seconds) < 1000:
            listeners.note()

    listeners = Listeners(sleep)
    listeners.wait_until_gone()
    assert len(seconds) > 1000


STARTED_WITH_NONSENSE = """
from tinkex.cluster.engine_actor import EngineActor
from tinkex.cluster.parts import from_parts

actor = EngineActor()
actor.begin(None, "")
told = next(filter(None, (actor.receive()[0] for _ in range(30))))
print(from_parts(told[0]))
"""


def test_whatever_keeps_an_engine_from_starting_is_told() -> None:
    """Its server would wait for ever: the actor goes on answering that there is no news. In a
    process of its own, which the actor ends when nobody listens."""
    command = [sys.executable, "-c", STARTED_WITH_NONSENSE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Failed(" in ended.stdout, ended.stderr
    assert "the engine could not start: " in ended.stdout
