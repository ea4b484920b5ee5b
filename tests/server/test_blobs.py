"""Blobs and folders are whole or absent, whatever is interrupted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tinkex.server.blobs import FolderBlobs, Folders, new_name
from tinkex.server.pins import Pins


def test_a_blob_comes_back_as_it_was(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "b")
    name, data = new_name(), os.urandom(300_000)
    blobs.put(name, data)
    assert FolderBlobs(tmp_path / "b").get(name) == data
    assert blobs.names() == {name}
    blobs.delete(name)
    blobs.delete(name)
    assert blobs.names() == set()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = FolderBlobs(tmp_path / "b")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        blobs.put(new_name(), b"x" * 1000)
    assert list((tmp_path / "b").iterdir()) == []


def test_what_was_half_written_is_swept_at_the_next_start(tmp_path: Path) -> None:
    blobs, folders = FolderBlobs(tmp_path / "b"), Folders(tmp_path / "f")
    (tmp_path / "b" / "tmp-half").write_bytes(b"x")
    draft = folders.begin()
    (draft / "file").write_bytes(b"x")
    assert blobs.names() == folders.names() == set()
    FolderBlobs(tmp_path / "b")
    Folders(tmp_path / "f")
    assert not list((tmp_path / "b").iterdir())
    assert not list((tmp_path / "f").iterdir())


def test_a_sealed_folder_stays_and_can_be_pinned_beyond_its_end(tmp_path: Path) -> None:
    folders, pins = Folders(tmp_path / "f"), Pins(tmp_path / "p")
    draft = folders.begin()
    (draft / "weights").write_bytes(b"numbers")
    name = folders.seal(draft)
    pinned = pins.pin("run:3", folders.path(name))
    folders.delete(name)
    assert (pinned / "weights").read_bytes() == b"numbers"
    assert pins.find("run:3") == pinned
    pins.keep_only(["run:3"])
    assert pins.find("run:3") == pinned
    pins.keep_only([])
    assert pins.find("run:3") is None
