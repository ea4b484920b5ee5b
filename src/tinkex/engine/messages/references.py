"""Weights by reference: an immutable folder, named by its content, that a worker gets if it lacks.

A worker on the sender's host reads `path`. One that has no such folder gets the files from their
links, checks them, and keeps them while it needs them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileLink:
    """A file of a folder: its hash, and where to fetch it by HTTP."""

    name: str
    size: int
    sha256: str
    url: str


@dataclass(frozen=True, slots=True)
class WeightsRef:
    """A folder that never changes. `path` is its place on the sender's host, if it has one.
    `digest` names its content: the SHA-256 of its list of files and hashes, empty where none was
    made. `files` are for workers elsewhere; without them only `path` can be read."""

    path: str
    digest: str = ""
    files: tuple[FileLink, ...] = ()
