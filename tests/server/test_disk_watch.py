"""The disk of a home is watched: a warning before it is full, and what can go goes."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from tinkex.server.storage.disk_watch import WARN_EVERY_S, DiskWatch

_Usage = namedtuple("_Usage", "total used free")


class _Clock:
    at = 0.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


async def test_a_low_disk_is_told_once_an_hour_and_relieved_until_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free, clock, relieved = 100 << 30, _Clock(), []

    async def relieve() -> None:
        relieved.append(free)

    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(200 << 30, 0, free))
    watch = DiskWatch(tmp_path, relieve, clock)
    await watch.look()
    assert (relieved, caplog.text) == ([], "")
    free = 1 << 30
    for _ in range(3):
        await watch.look()
    assert len(relieved) == 3
    assert len(caplog.records) == 1
    assert "1.0 GiB left" in caplog.text
    assert "tinkex home du" in caplog.text
    clock.at += WARN_EVERY_S
    await watch.look()
    assert len(caplog.records) == 2
