"""An engine gets ready in idle time, which nobody who is soon back ever waits for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from support.engine_workers import Local, engine, step
from support.sampling import sample
from tinkex.engine.messages import Command, Done
from tinkex.engine.process.worker import QUIET_S, SOON_S


@pytest.fixture
def local() -> Iterator[Local]:
    with engine("thread") as made:
        assert isinstance(made, Local)
        yield made


@pytest.mark.parametrize("broken", [False, True])
def test_idle_time_is_used_to_get_ready_and_commands_are_served_all_the_same(
    local: Local, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    forward, ready = local.worker._sampler._forward, threading.Event()
    prepare = forward.prepare

    def watched() -> bool:
        if broken:
            ready.set()
            raise MemoryError("no room")
        if not prepare():
            ready.set()
        return not ready.is_set()

    monkeypatch.setattr(forward, "prepare", watched)
    thread = threading.Thread(target=local.worker.run)
    thread.start()
    assert ready.wait(30)
    local.send(sample("s", [1, 2]))
    while not any(isinstance(event, Done) for event in local._events):
        assert thread.is_alive()
        time.sleep(0.01)
    local.worker.stop()
    thread.join(30)
    assert not prepare() or broken


class Inbox(queue.SimpleQueue[Command | None]):
    """With a clock of its own, which goes on when somebody waits here in vain."""

    now = 0.0

    def get(self, block: bool = True, timeout: float | None = None) -> Command | None:
        if self.empty() and timeout is not None:
            self.now += timeout
            raise queue.Empty
        return super().get(block, timeout)


def test_a_client_that_is_soon_back_after_a_long_step_finds_nobody_getting_ready(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, worker = Inbox(), local.worker
    monkeypatch.setattr(worker, "_inbox", inbox)
    monkeypatch.setattr("tinkex.engine.process.worker.time.monotonic", lambda: inbox.now)
    began: list[tuple[str, float]] = []
    ended = 0.0

    def took_long(command: object) -> None:
        nonlocal ended
        inbox.now += 60
        ended = inbox.now

    def note(what: str) -> bool:
        began.append((what, inbox.now - ended))
        if what == "compiling":
            worker.stop()
        return False

    monkeypatch.setattr(worker._trainer, "optim_step", took_long)
    monkeypatch.setattr(worker._trainer, "prepare", lambda: note("preparing"))
    monkeypatch.setattr(worker._sampler, "prepare", lambda: False)
    monkeypatch.setattr(worker._trainer, "compile_more", lambda: note("compiling"))
    local.send(step("s", "nobody's"))
    worker.run()
    assert [what for what, _ in began] == ["preparing", "compiling"]
    assert [after for _, after in began] == pytest.approx([SOON_S, QUIET_S])
