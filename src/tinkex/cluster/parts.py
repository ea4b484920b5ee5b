"""Parts of frames in the form that Ray carries: large ones as arrays, which it does not copy.

Ray pickles what it carries once more. Bytes are then part of that pickle. Arrays are beside it,
written into shared memory once, and read there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinkex.engine import frames

Part: TypeAlias = bytes | NDArray[np.uint8]
Parts: TypeAlias = list[Part]

_BESIDE = 4096
"""Bytes from which a part is worth a buffer of its own."""


def to_parts(value: object) -> Parts:
    return pack(frames.to_parts(value))


def from_parts(parts: Parts) -> Any:
    """The value; its large arrays lie where Ray has them, and are not to be written to."""
    return frames.from_parts(unpack(parts))


def pack(parts: Sequence[frames.Buffer]) -> Parts:
    return [_packed(part) for part in parts]


def unpack(parts: Parts) -> list[memoryview]:
    return [part.data if isinstance(part, np.ndarray) else memoryview(part) for part in parts]


def _packed(part: frames.Buffer) -> Part:
    return np.frombuffer(part, np.uint8) if len(part) >= _BESIDE else bytes(part)
