"""Promises of the tar stream."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tinkex.server.archive import Archive


def test_a_standard_reader_gets_every_file_back_and_the_size_was_known(tmp_path: Path) -> None:
    contents = {"a.json": b"{}", "empty": b"", "sub/ä" + "x" * 150: b"n" * 70_000, "b": b"y" * 512}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    archive = Archive(tmp_path, list(contents))
    raw = b"".join(archive)
    assert len(raw) == archive.size
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        read = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    assert read == contents


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    (tmp_path / "y").write_bytes(b"2")
    assert b"".join(Archive(tmp_path, ["x", "y"])) == b"".join(Archive(tmp_path, ["y", "x"]))


def test_a_file_that_shrinks_meanwhile_breaks_the_stream(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    stream = iter(Archive(tmp_path, ["x"]))
    next(stream)
    (tmp_path / "x").write_bytes(b"1")
    with pytest.raises(OSError, match="became shorter"):
        list(stream)
