"""Weights by reference: an immutable folder, named by its content, that a worker gets if it lacks.

A worker on the sender's host reads `path`. One that has no such folder gets the files from their
links, checks them, and keeps them while it needs them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileLink:
    """A file of a folder, how to tell that it is the right one, and where it can be had by HTTP."""

    name: str
    size: int
    sha256: str
    url: str


@dataclass(frozen=True, slots=True)
class WeightsRef:
    """A folder that never changes.

    `path` is where it lies on the sender's host, if it does. `digest` names its content: the
    SHA-256 of its list of files and hashes, empty where none was made. `files` are for workers
    elsewhere; without them there is nothing to be had but `path`.
    """

    path: str
    digest: str = ""
    files: tuple[FileLink, ...] = ()
