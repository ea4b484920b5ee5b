"""An engine on Ray lives as long as a server listens to it."""

from __future__ import annotations

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
