"""Blobs and folders are whole or absent, whatever is interrupted."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import NoReturn

import pytest

from tinkex.server.storage import folders as folders_module
from tinkex.server.storage.blobs import SegmentBlobs
from tinkex.server.storage.folders import Folders
from tinkex.server.storage.pins import Pins


def test_a_blob_comes_back_as_it_was(tmp_path: Path) -> None:
    blobs = SegmentBlobs(tmp_path / "b")
    data = [os.urandom(size) for size in (300_000, 0, 1, 70_000)]
    names = [blobs.reserve(len(each)) for each in data]
    for name, each in reversed(list(zip(names, data, strict=True))):
        blobs.put(name, each)
    again = SegmentBlobs(tmp_path / "b")
    assert [again.get(name) for name in names] == data
    assert all(again.is_whole(name) for name in names)


def test_what_was_never_or_half_written_is_not_whole(tmp_path: Path) -> None:
    blobs = SegmentBlobs(tmp_path / "b")
    whole, absent, torn = (blobs.reserve(1000) for _ in range(3))
    blobs.put(whole, b"x" * 1000)
    blobs.put(torn, b"y" * 1000)
    (path,) = (tmp_path / "b").iterdir()
    path.write_bytes(path.read_bytes()[:-500])
    assert [blobs.is_whole(name) for name in (whole, absent, torn)] == [True, False, False]
    flipped = bytearray(path.read_bytes())
    flipped[10] ^= 1
    path.write_bytes(flipped)
    assert not blobs.is_whole(whole)
    with pytest.raises(OSError, match="damaged"):
        blobs.get(whole)


def test_a_segment_goes_when_nothing_in_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinkex.server.storage.blobs._SEGMENT_BYTES", 2000)
    blobs = SegmentBlobs(tmp_path / "b")
    names = [blobs.reserve(900) for _ in range(9)]
    for name in names:
        blobs.put(name, bytes(900))
    assert len(list((tmp_path / "b").iterdir())) == 3
    for name in names[:3]:
        blobs.delete(name)
    assert len(list((tmp_path / "b").iterdir())) == 2
    again = SegmentBlobs(tmp_path / "b")
    again.keep_only([names[4]])
    assert again.get(names[4]) == bytes(900)
    assert len(list((tmp_path / "b").iterdir())) == 1
    fresh = again.reserve(10)
    again.put(fresh, bytes(10))
    again.delete(names[4])
    assert [again.is_whole(name) for name in (fresh, names[4])] == [True, False]


def test_a_segment_emptied_while_it_was_the_newest_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinkex.server.storage.blobs._SEGMENT_BYTES", 1000)
    blobs = SegmentBlobs(tmp_path / "b")
    for _ in range(4):
        name = blobs.reserve(1000)
        blobs.put(name, bytes(1000))
        blobs.delete(name)
    assert len(list((tmp_path / "b").iterdir())) == 1


def test_something_else_can_be_done_while_the_disk_is_busy(tmp_path: Path) -> None:
    blobs = SegmentBlobs(tmp_path / "b")
    name, done = blobs.reserve(5), []
    blobs.put(name, b"bytes", lambda: done.append(blobs.get(name)))
    assert done == [b"bytes"]
    other = blobs.reserve(5)
    with pytest.raises(ZeroDivisionError):
        blobs.put(other, b"bytes", lambda: 1 // 0)


def test_what_was_half_written_is_swept_at_the_next_start(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "f")
    draft = folders.begin()
    (draft / "file").write_bytes(b"x")
    assert folders.names() == set()
    Folders(tmp_path / "f")
    assert not list((tmp_path / "f").iterdir())


async def test_a_sealed_folder_stays_and_can_be_pinned_beyond_its_end(tmp_path: Path) -> None:
    folders, pins = Folders(tmp_path / "f"), Pins(tmp_path / "p")
    draft = folders.begin()
    (draft / "weights").write_bytes(b"numbers")
    name = folders.seal(draft)
    pinned = await pins.pin("run:3", name, folders.path(name))
    folders.delete(name)
    assert Path(pinned.path, "weights").read_bytes() == b"numbers"
    assert await pins.find("run:3") == pinned
    pins.keep_only(["run:3"])
    assert await pins.find("run:3") == pinned
    pins.keep_only([])
    assert await pins.find("run:3") is None


@pytest.mark.parametrize("maps", [True, False])
def test_a_large_file_is_sealed_also_where_files_cannot_be_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maps: bool
) -> None:
    monkeypatch.setattr(folders_module, "_PIECE", mmap.ALLOCATIONGRANULARITY)
    if not maps:

        def refuse(*_: object) -> NoReturn:
            raise OSError(errno.ENODEV, "No such device")

        monkeypatch.setattr(mmap, "mmap", refuse)
    synced: list[int] = []
    fsync = os.fsync

    def sync(file: int) -> None:
        synced.append(os.fstat(file).st_size)
        fsync(file)

    monkeypatch.setattr(os, "fsync", sync)
    folders, data = Folders(tmp_path / "f"), bytes(range(256)) * 999
    draft = folders.begin()
    (draft / "weights").write_bytes(data)
    assert folders.path(folders.seal(draft)).joinpath("weights").read_bytes() == data
    assert len(data) in synced
