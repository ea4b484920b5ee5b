"""Files come by their links whole and in parts, and what breaks off is asked for again."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from support.file_server import Behaviour, file_server
from tinkex.engine.process import linked_files
from tinkex.engine.process.linked_files import LinkBroken, download
from tinkex.engine.process.parts import Write, assemble

PART = 1000
CONTENT = bytes(range(256)) * 20


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked_files, "PART_BYTES", PART)
    monkeypatch.setattr(linked_files, "_FIRST_PAUSE_S", 0.0)


def fetched(behaviour: Behaviour, target: Path, size: int = len(CONTENT)) -> str:
    with file_server(behaviour) as address:
        return download(f"{address}/file", size, target)


@pytest.mark.parametrize("status", [206, 200])
def test_a_large_file_comes_in_parts_whatever_status_its_service_gives_them(
    status: int, tmp_path: Path
) -> None:
    behaviour = Behaviour({"file": CONTENT}, parts=status)
    digest = fetched(behaviour, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    ends = [min(start + PART, len(CONTENT)) for start in range(0, len(CONTENT), PART)]
    parts = [f"bytes={number * PART}-{end - 1}" for number, end in enumerate(ends)]
    assert sorted(map(str, behaviour.ranges[1:])) == sorted(parts)


def test_a_service_without_parts_sends_the_file_whole(tmp_path: Path) -> None:
    behaviour = Behaviour({"file": CONTENT})
    digest = fetched(behaviour, tmp_path / "file")
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    assert behaviour.ranges == ["bytes=0-0", None]


def test_an_empty_file_comes_too(tmp_path: Path) -> None:
    assert fetched(Behaviour({"file": b""}), tmp_path / "file", 0) == hashlib.sha256().hexdigest()
    assert (tmp_path / "file").read_bytes() == b""


def test_of_a_part_that_breaks_off_only_that_part_is_asked_for_again(tmp_path: Path) -> None:
    behaviour = Behaviour({"file": CONTENT}, parts=206, cut_after=[1, 10, 20])
    digest = fetched(behaviour, tmp_path / "file")
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    assert len(behaviour.ranges) == 1 + len(CONTENT) // PART + 1 + 2


def test_a_file_longer_than_was_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LinkBroken, match="longer than the 10 bytes"):
        fetched(Behaviour({"file": CONTENT}), tmp_path / "file", 10)


def test_what_is_not_there_is_asked_for_once(tmp_path: Path) -> None:
    behaviour = Behaviour({})
    with pytest.raises(FileNotFoundError):
        fetched(behaviour, tmp_path / "file")
    assert len(behaviour.ranges) == 1


def test_a_service_that_refuses_is_asked_several_times_and_then_named(tmp_path: Path) -> None:
    behaviour = Behaviour({"file": CONTENT}, statuses=[503] * 6)
    with pytest.raises(LinkBroken, match="503"):
        fetched(behaviour, tmp_path / "file")


def test_a_full_disk_is_no_broken_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def bring(start: int, _: int, write: Write) -> None:
        write(start, CONTENT)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left") as found:
        assemble(tmp_path / "file", len(CONTENT), bring, len(CONTENT))
    assert found.value.errno == errno.ENOSPC
