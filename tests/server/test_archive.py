"""Promises of the tar stream."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

import pytest

from tinkex.server.checkpoints.archive import Archive


def test_a_standard_reader_gets_every_file_back_and_the_size_was_known(tmp_path: Path) -> None:
    contents = {"a.json": b"{}", "empty": b"", "sub/ä" + "x" * 150: b"n" * 70_000, "b": b"y" * 512}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    archive = Archive(tmp_path, list(contents))
    raw = b"".join(archive)
    assert len(raw) == archive.size
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        read = {entry.name: tar.extractfile(entry).read() for entry in tar}
    assert read == contents


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    (tmp_path / "y").write_bytes(b"2")
    assert b"".join(Archive(tmp_path, ["x", "y"])) == b"".join(Archive(tmp_path, ["y", "x"]))


def test_any_part_is_the_same_part_of_the_whole(tmp_path: Path) -> None:
    for name, size in (("a", 0), ("b", 700), ("c", 512), ("d", 300_000)):
        (tmp_path / name).write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    archive = Archive(tmp_path, ["a", "b", "c", "d"])
    whole, dice = b"".join(archive), random.Random(3)
    edges = [0, 1, 511, 512, 513, archive.size - 1, archive.size]
    places = edges + [dice.randrange(archive.size) for _ in range(40)]
    for start in places:
        for end in places:
            assert b"".join(archive.part(start, end)) == whole[start:end], (start, end)


def test_a_file_that_shrinks_meanwhile_breaks_the_stream(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    stream = iter(Archive(tmp_path, ["x"]))
    next(stream)
    (tmp_path / "x").write_bytes(b"1")
    with pytest.raises(OSError, match="became shorter"):
        list(stream)
