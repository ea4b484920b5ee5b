"""Python values over a stream socket, their array buffers without copies.

A frame is a count of parts and their sizes, then the parts: a pickle, and the buffers it refers to.
Only for sockets between a process and its own child: unpickling trusts the sender.
"""

from __future__ import annotations

import fcntl
import pickle
import socket
import struct
import sys
import termios
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

_COUNT = struct.Struct("<I")
_MAX_IOVEC = 512

SMALL = 64 << 10
"""Bytes that a stream's buffer always has room for if there is nothing in it."""

Buffer: TypeAlias = bytes | bytearray | memoryview


class Closed(Exception):
    """The other side has closed the stream."""


def send_frame(stream: socket.socket, value: object) -> None:
    """Write one value. Callers that share a stream take turns."""
    send_parts(stream, to_parts(value))


def receive_frame(stream: socket.socket) -> Any:
    """Read one value; its arrays lie in the buffers they were read into."""
    return from_parts(receive_parts(stream))


def send_now(stream: socket.socket, value: object) -> bool:
    """Write one value if it is small and the stream has room for it: never waits. False: nothing
    was written."""
    parts = to_parts(value)
    if sum(part.nbytes for part in parts) + _unsent(stream) > SMALL:
        return False
    send_parts(stream, parts)
    return True


def take_frame(stream: socket.socket, wanted: Callable[[Any], bool]) -> Any:
    """Read one value if it is small, all there and `wanted`: never waits. None: nothing is read."""
    there = bytearray(SMALL)
    there = there[: stream.recv_into(there, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)]
    ends = _ends(there)
    if ends is None or ends[-1] > len(there):
        return None
    value = from_parts([memoryview(there)[start:stop] for start, stop in pairwise(ends)])
    if not wanted(value):
        return None
    receive_exactly(stream, ends[-1])
    return value


def to_parts(value: object) -> list[memoryview]:
    """A pickle, and the buffers of the value's arrays where they lie."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return [memoryview(head), *(buffer.raw() for buffer in buffers)]


def from_parts(parts: Sequence[Buffer]) -> Any:
    """The value; its arrays lie in the given buffers."""
    head, *buffers = parts
    return pickle.loads(head, buffers=buffers)


def send_parts(stream: socket.socket, parts: Sequence[memoryview]) -> None:
    """Write one frame that is in parts already."""
    sizes = struct.pack(f"<{len(parts)}Q", *(part.nbytes for part in parts))
    _send_all(stream, [memoryview(_COUNT.pack(len(parts)) + sizes), *parts])


def receive_parts(stream: socket.socket) -> list[bytearray]:
    """Read one frame and leave it in parts."""
    (count,) = _COUNT.unpack(receive_exactly(stream, _COUNT.size))
    sizes = struct.unpack(f"<{count}Q", receive_exactly(stream, 8 * count))
    return [receive_exactly(stream, size) for size in sizes]


def _ends(there: bytearray) -> list[int] | None:
    """Where the parts of the frame that begins here begin, and where the last ends; None if not
    even that is there."""
    if len(there) < _COUNT.size:
        return None
    (count,) = _COUNT.unpack_from(there)
    first = _COUNT.size + 8 * count
    if first > len(there):
        return None
    sizes = struct.unpack_from(f"<{count}Q", there, _COUNT.size)
    return list(accumulate(sizes, initial=first))


def _unsent(stream: socket.socket) -> int:
    """Bytes written to a stream that the other side has not read."""
    found = fcntl.ioctl(stream.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(found, sys.byteorder)


def _send_all(stream: socket.socket, parts: list[memoryview]) -> None:
    waiting = [part for part in parts if part.nbytes]
    first = 0
    while first < len(waiting):
        try:
            sent = stream.sendmsg(waiting[first : first + _MAX_IOVEC])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed("the stream is closed") from error
        while first < len(waiting) and sent >= waiting[first].nbytes:
            sent -= waiting[first].nbytes
            first += 1
        if sent:
            waiting[first] = waiting[first][sent:]


def receive_exactly(stream: socket.socket, size: int) -> bytearray:
    """That many bytes, or `Closed`."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            count = stream.recv_into(view)
        except ConnectionResetError as error:
            raise Closed("the stream is closed") from error
        if not count:
            raise Closed("the stream is closed")
        view = view[count:]
    return data
