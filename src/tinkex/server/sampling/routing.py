"""Which engine of a pool a sample goes to: the one with its weights and its longest cached prefix.

Within bounds: an engine with much more work than the least loaded one is not preferred for its
cache. So popular weights spread to more engines by themselves, and a popular prompt is computed on
more than one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tinkex.engine.messages import IntArray

BLOCK = 64
"""Tokens of the smallest prefix that is remembered, and the distance to the next ones."""
_NEAR, _FAR = 16 * BLOCK, 8 * BLOCK
"""Up to here every block counts; beyond it every eighth, so that a long prompt has few prefixes
too."""
_LONGEST = 48
"""Prefixes of one prompt that are looked up."""
_REMEMBERED = 65_536
_PREFIX_SLACK, _WEIGHTS_SLACK = 2, 4
"""Sequences by which an engine may exceed the least loaded one, besides a quarter or half of its
load."""


class Candidate(NamedTuple):
    """An engine that could take a sample now: its load in sequences, and whether it has the
    weights."""

    engine: str
    load: int
    has_weights: bool


class Prefixes:
    """Which engine computed which prefixes of prompts, as far back as there is room for."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._engines: dict[bytes, str] = {}
        self._remembered = remembered

    def __len__(self) -> int:
        return len(self._engines)

    def longest(self, keys: Sequence[bytes]) -> str | None:
        """Which engine computed the longest of these prefixes, given in order of their lengths."""
        for key in reversed(keys):
            engine = self._engines.get(key)
            if engine is not None:
                return engine
        return None

    def note(self, keys: Sequence[bytes], engine: str) -> None:
        for key in keys:
            self._engines.pop(key, None)
            self._engines[key] = engine
        while len(self._engines) > self._remembered:
            del self._engines[next(iter(self._engines))]


def prefix_keys(weights: str, prompt: IntArray) -> list[bytes]:
    """A short key for each prefix of a prompt that may be cached, the shortest first."""
    digest = hashlib.blake2b(weights.encode(), digest_size=12)
    found, start = [], 0
    data = memoryview(prompt.tobytes())
    width = prompt.itemsize
    for end in _ends(len(prompt)):
        digest.update(data[start * width : end * width])
        found.append(digest.digest())
        start = end
    return found


def choose(candidates: Sequence[Candidate], cached_by: str | None) -> Candidate:
    """The one to send a sample to."""
    least = min([each.load for each in candidates])
    for each in candidates:
        near = each.load <= least + _PREFIX_SLACK + least // 4
        if each.engine == cached_by and each.has_weights and near:
            return each
    bound = least + _WEIGHTS_SLACK + least // 2
    able = [each for each in candidates if each.has_weights and each.load <= bound]
    return min(able or candidates, key=lambda each: each.load)


def _ends(length: int) -> Iterator[int]:
    end = 0
    for _ in range(_LONGEST):
        end += BLOCK if end < _NEAR else _FAR
        if end > length:
            return
        yield end
