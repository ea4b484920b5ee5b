"""What a checkpoint folder holds: every file with its size and SHA-256.

Knows files and hashes only; it cannot read an adapter and does not know what a run is. The manifest
itself is named by its digest, which the store keeps, so that no byte of a checkpoint, the list of
files included, can change unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MANIFEST_NAME = "manifest.json"
_FORMAT = 1
_BLOCK = 1 << 20


class CorruptCheckpoint(Exception):
    """A checkpoint on disk is not what was saved. The message names the file."""


class FileRecord(NamedTuple):
    """What a file of a checkpoint must be."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a checkpoint by relative name, the manifest excluded."""

    files: Mapping[str, FileRecord]

    @property
    def size_bytes(self) -> int:
        return sum(record.size for record in self.files.values())

    def encode(self) -> bytes:
        files = {
            name: {"size": record.size, "sha256": record.sha256}
            for name, record in sorted(self.files.items())
        }
        return json.dumps({"format": _FORMAT, "files": files}, indent=1).encode() + b"\n"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.encode()).hexdigest()


def build(folder: Path) -> Manifest:
    """Hash every file under `folder`. Links and special files are refused."""
    return Manifest({name: _record(folder / name) for name in _names(folder)})


def write(folder: Path) -> Manifest:
    """Build the manifest of `folder` and store it inside; making it durable is left to others."""
    manifest = build(folder)
    (folder / MANIFEST_NAME).write_bytes(manifest.encode())
    return manifest


def read(folder: Path, digest: str | None = None) -> Manifest:
    """The manifest stored in `folder`; with `digest`, refused unless it is exactly that one."""
    try:
        raw = (folder / MANIFEST_NAME).read_bytes()
    except OSError as error:
        raise CorruptCheckpoint(f"{MANIFEST_NAME} cannot be read: {error.strerror}") from error
    return parse(raw, digest)


def parse(raw: bytes, digest: str | None = None) -> Manifest:
    """The same from its bytes."""
    if digest is not None and hashlib.sha256(raw).hexdigest() != digest:
        raise CorruptCheckpoint(f"{MANIFEST_NAME} is not the one that was saved")
    return _decode(raw)


def digest_of(folder: Path) -> str:
    """What names the manifest stored in `folder`."""
    return read(folder).digest


def verify(folder: Path, digest: str | None = None) -> Manifest:
    """Check every byte of `folder` against its manifest; raise `CorruptCheckpoint` otherwise."""
    manifest = read(folder, digest)
    present = set(_names(folder))
    for name in sorted(set(manifest.files) - present):
        check_size(name, None, manifest.files[name].size)
    for name in sorted(present - set(manifest.files)):
        raise CorruptCheckpoint(f"{name} is not part of the checkpoint")
    for name, expected in manifest.files.items():
        _check(folder / name, name, expected)
    return manifest


def check_size(name: str, found: int | None, expected: int) -> None:
    """Refuse a file that is not there, or too long or too short."""
    if found is None:
        raise CorruptCheckpoint(f"{name} is missing")
    if found != expected:
        raise CorruptCheckpoint(f"{name} has {found} bytes, {expected} were saved")


def _check(path: Path, name: str, expected: FileRecord) -> None:
    check_size(name, path.stat().st_size, expected.size)
    if _record(path).sha256 != expected.sha256:
        raise CorruptCheckpoint(f"{name} was changed after it was saved (SHA-256 differs)")


def _decode(raw: bytes) -> Manifest:
    try:
        files = json.loads(raw)["files"]
        records = {
            str(name): FileRecord(int(entry["size"]), str(entry["sha256"]))
            for name, entry in files.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(f"{MANIFEST_NAME} is not a manifest") from error
    return Manifest(records)


def _names(folder: Path) -> Iterator[str]:
    """Relative names of all files below `folder`, the manifest excluded, in a fixed order."""
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            path = Path(parent, file)
            if path.is_symlink() or not path.is_file():
                raise CorruptCheckpoint(f"{file} is not a regular file")
            name = path.relative_to(folder).as_posix()
            if name != MANIFEST_NAME:
                yield name


def _record(path: Path) -> FileRecord:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return FileRecord(size, digest.hexdigest())
