"""Messages between the engine and a loss's process.

Questions are pickled: the process trusts the engine. Answers are a text and two arrays of known
sizes, because the engine does not trust the process. A page of shared memory holds the node being
evaluated, for the case that there is no answer.
"""

from __future__ import annotations

import mmap
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.frames import Closed, receive_exactly

_HEAD = struct.Struct("<QQQQ")
_PLACE = struct.Struct("<ii")
_TEXT_BYTES = 2048
PID = struct.Struct("<i")
PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Job:
    """Datums to evaluate, `places` being theirs in the call. `limit` and `spent` are the call's
    allowance of work and what earlier jobs took of it."""

    places: Sequence[int]
    data: Sequence[Mapping[str, NDArray[np.generic]]]
    slopes: bool
    limit: int
    spent: int


@dataclass(frozen=True, slots=True)
class Reply:
    """`numbers` has a row per datum: the loss, then its metrics. `slopes` are end to end.

    With an `error` there is nothing else but the work done.
    """

    error: str | None
    spent: int
    numbers: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    slopes: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))


def send_reply(stream: socket.socket, reply: Reply) -> None:
    text = (reply.error or "").encode(errors="replace")[:_TEXT_BYTES]
    sizes = len(text), reply.numbers.size, reply.slopes.size
    stream.sendall(_HEAD.pack(reply.spent, *sizes) + text)
    stream.sendall(np.ascontiguousarray(reply.numbers, np.float64).tobytes())
    stream.sendall(np.ascontiguousarray(reply.slopes, np.float32).tobytes())


def receive_reply(stream: socket.socket, numbers: int, slopes: int) -> Reply:
    """An answer with that many numbers and slopes, or an error. `Closed` if it is neither."""
    spent, length, *sizes = _HEAD.unpack(receive_exactly(stream, _HEAD.size))
    if length > _TEXT_BYTES or sizes != ([0, 0] if length else [numbers, slopes]):
        raise Closed("the process sent something else than an answer")
    if length:
        return Reply(receive_exactly(stream, length).decode(errors="replace"), spent)
    found = np.frombuffer(receive_exactly(stream, 8 * numbers), np.float64)
    return Reply(None, spent, found, np.frombuffer(receive_exactly(stream, 4 * slopes), np.float32))


def write_place(page: mmap.mmap, datum: int, node: int) -> None:
    _PLACE.pack_into(page, 0, datum, node)


def read_place(page: mmap.mmap) -> tuple[int, int]:
    """The datum of the job and the node it was at."""
    datum, node = _PLACE.unpack_from(page, 0)
    return datum, node
