"""Of a store that takes requests and says nothing people hear within seconds, and in the log."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.object_service import BUCKET, ObjectService
from tinkex.server.storage.objects import silence, watch
from tinkex.server.storage.objects import store as store_module
from tinkex.server.storage.objects.cache import Cache
from tinkex.server.storage.objects.remote import RemoteObjects
from tinkex.server.storage.objects.store import ObjectStore, StoreDown
from tinkex.server.storage.objects.watch import StoreWatch


def _until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class _Held(threading.Event):
    """A part whose deletions wait for the store until this is set."""

    begun = 0

    def open(self) -> None:
        """It has nothing there."""

    def delete_due(self) -> None:
        self.begun += 1
        self.wait(60)


def test_a_store_that_says_nothing_is_in_trouble_while_it_does(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "PATIENCE_S", 0.05)
    store = ObjectStore(f"s3://{BUCKET}/silent")
    service.proxy.delay_s = 1.0
    asking = threading.Thread(target=store.put, args=("key", b"abc"))
    asking.start()
    _until(lambda: store.trouble is not None)
    assert "the object store does not answer: a request has waited for" in str(store.trouble)
    service.proxy.delay_s = 0.0
    asking.join()
    assert store.trouble is None


def test_a_large_object_may_take_its_time() -> None:
    waiting = silence.Silence()
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(silence, "PATIENCE_S", 0.0)
        with waiting.waiting(64 << 20), waiting.waiting(None):
            assert waiting.seconds is None
            with waiting.waiting(0):
                _until(lambda: waiting.seconds is not None)
            assert waiting.seconds is None


def test_what_does_not_answer_is_said_without_the_settings_of_our_tries(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_RETRY", {"max_retries": 0})
    store = ObjectStore(f"s3://{BUCKET}/cut")
    service.proxy.cut()
    with pytest.raises(StoreDown, match="error sending request") as caught:
        store.put("key", b"abc")
    assert "retries" not in str(caught.value)


def test_trouble_and_its_end_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, watch.__name__)
    looks = StoreWatch(None)
    for trouble in (None, "it is away", "it is away for longer", None, None):
        looks.look(trouble)
    assert caplog.messages == ["it is away; what needs it waits", "the object store answers again"]


async def test_who_looks_at_the_store_does_not_wait_for_what_is_deleted_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_EVERY_S", 0.01)
    held, looked = _Held(), asyncio.Event()
    remote = RemoteObjects(ObjectStore(f"file://{tmp_path}/store"), Cache(1), [held])
    looks = StoreWatch(remote)
    living = asyncio.create_task(looks.live())
    while not held.begun:
        await asyncio.sleep(0.01)
    monkeypatch.setattr(looks, "look", lambda _: looked.set())
    await asyncio.wait_for(looked.wait(), 60)
    assert not held.is_set()
    held.set()
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
