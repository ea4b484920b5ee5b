"""Terms of single tenants: weight, priority and limits of their own.

Read from one small JSON file in the home, `tenants.json`, by tenants' names; changes apply within a
moment. An invalid file keeps a server from starting; a running server keeps the last valid one.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tinkex.server.settings import PRIORITIES, Terms
from tinkex.server.tenancy.keys import KeyProblem

logger = logging.getLogger(__name__)

FILE_NAME = "tenants.json"
LARGEST_WEIGHT = 16
_LOOK_S = 0.2
"""Seconds between two looks at the file: schedulers ask many times a second."""
LIMITS = (
    "sessions_per_tenant",
    "runs_per_tenant",
    "checkpoint_bytes_per_tenant",
    "pending_bytes_per_tenant",
    "samples_per_tenant",
)


class TenantTerms(Mapping[str, Terms]):
    """The terms of one home: a view that follows its file."""

    def __init__(self, home: Path, look_s: float = _LOOK_S) -> None:
        """Raises `KeyProblem` where the file is wrong."""
        self._path, self._look_s = home / FILE_NAME, look_s
        self._looked_at = time.monotonic()
        self._stamp = self._read_stamp()
        self._terms = _decode(self._path) if self._stamp else {}

    def __getitem__(self, tenant: str) -> Terms:
        return self._current()[tenant]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())

    def _current(self) -> Mapping[str, Terms]:
        now = time.monotonic()
        if now - self._looked_at < self._look_s:
            return self._terms
        self._looked_at, stamp = now, self._read_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._terms = _decode(self._path) if stamp else {}
            except KeyProblem as error:
                logger.error("%s; what it said before still counts", error)
        return self._terms

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _decode(path: Path) -> dict[str, Terms]:
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise KeyProblem(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise KeyProblem(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise KeyProblem(f"{path} is not an object with tenants' names")
    return {name: _terms(path, name, entry) for name, entry in found.items()}


def _terms(path: Path, name: str, entry: Any) -> Terms:
    known = ("weight", "priority", *LIMITS)
    if not isinstance(entry, dict) or not set(entry) <= set(known):
        raise KeyProblem(f"{path}: the terms of {name} may be {', '.join(known)}")
    priority = entry.get("priority", "normal")
    if priority not in PRIORITIES:
        raise KeyProblem(f"{path}: priority of {name} is none of {', '.join(PRIORITIES)}")
    numbers = {field: entry[field] for field in entry if field != "priority"}
    for field, number in numbers.items():
        if type(number) is not int or number < 1:
            raise KeyProblem(f"{path}: {field} of {name} is not a whole number above 0")
    weight = numbers.pop("weight", 1)
    if weight > LARGEST_WEIGHT:
        raise KeyProblem(f"{path}: weight of {name} is {weight}: give 1 to {LARGEST_WEIGHT}")
    return Terms(weight, numbers, priority)
