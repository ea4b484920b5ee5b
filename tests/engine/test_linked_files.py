"""Files come by their links whole and in parts, and what breaks off is asked for from there on."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.file_server import Behaviour, file_server
from tinkex.engine.process import linked_files, parts
from tinkex.engine.process.linked_files import LinkBroken, download
from tinkex.engine.process.parts import Write, assemble, in_parts

PART = 1000
CONTENT = bytes(range(256)) * 20


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked_files, "PART_BYTES", PART)
    monkeypatch.setattr(parts, "PART_BYTES", PART)
    monkeypatch.setattr(parts, "_FIRST_BYTES", 100)
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
    starts = [0, 100, 200, 400, 800, 1600, 2600, 3600, 4600, len(CONTENT)]
    asked = [f"bytes={start}-{end - 1}" for start, end in pairwise(starts)]
    assert sorted(map(str, behaviour.ranges[1:])) == sorted(asked)


def test_a_service_without_parts_sends_the_file_whole(tmp_path: Path) -> None:
    behaviour = Behaviour({"file": CONTENT})
    digest = fetched(behaviour, tmp_path / "file")
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    assert behaviour.ranges == ["bytes=0-0", None]


def test_an_empty_file_comes_too(tmp_path: Path) -> None:
    assert fetched(Behaviour({"file": b""}), tmp_path / "file", 0) == hashlib.sha256().hexdigest()
    assert (tmp_path / "file").read_bytes() == b""


def test_of_a_part_that_breaks_off_only_what_is_missing_is_asked_for_again(tmp_path: Path) -> None:
    behaviour = Behaviour({"file": CONTENT}, parts=206, cut_after=[1, 10, 20])
    digest = fetched(behaviour, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    whole = list(in_parts(len(CONTENT)))
    asked = [tuple(map(int, str(text)[len("bytes=") :].split("-"))) for text in behaviour.ranges]
    again = [start for start, _ in asked[1:] if start not in {part.start for part in whole}]
    assert len(again) == 2
    assert len(asked) == 1 + len(whole) + 2


def test_a_file_that_breaks_off_is_hashed_as_it_lies_there_whatever_the_next_try_sends(
    tmp_path: Path,
) -> None:
    """Or the hash could be that of bytes which are not in the file any more."""
    behaviour = Behaviour({"file": CONTENT}, cut_after=[len(CONTENT), 3000])
    contents = iter([CONTENT, CONTENT, bytes(len(CONTENT))])

    class Changing(dict[str, bytes]):
        def get(self, *_: object) -> bytes:
            return next(contents)

    behaviour.files = Changing()
    digest = fetched(behaviour, tmp_path / "file")
    assert digest == hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()
    assert digest != hashlib.sha256(CONTENT).hexdigest()


def test_what_has_come_is_hashed_while_the_rest_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, plain = threading.Event(), parts._hash

    def hash_and_tell(*arguments: Any) -> None:
        plain(*arguments)
        hashed.set()

    monkeypatch.setattr(parts, "_hash", hash_and_tell)

    def bring(_start: int, length: int, write: Write) -> None:
        write(CONTENT[:100])
        assert hashed.wait(60), "the first bytes wait for the last ones"
        write(CONTENT[100:length])

    digest = assemble(tmp_path / "file", len(CONTENT), [range(len(CONTENT))], bring)
    assert digest == hashlib.sha256(CONTENT).hexdigest()


def test_more_than_a_part_never_runs_into_the_next_one(tmp_path: Path) -> None:
    def bring(start: int, length: int, write: Write) -> None:
        write(CONTENT[start : start + length + 1])

    with pytest.raises(OSError, match="more came than the part"):
        assemble(tmp_path / "file", 2000, [range(1000), range(1000, 2000)], bring)


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

    def bring(_start: int, _length: int, write: Write) -> None:
        write(CONTENT)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left") as found:
        assemble(tmp_path / "file", len(CONTENT), [range(len(CONTENT))], bring)
    assert found.value.errno == errno.ENOSPC
