"""Python values over a stream socket, their array buffers without copies.

A frame is a count of parts and their sizes, then the parts: a pickle, and the buffers it refers to.
Only for sockets between a process and its own child: unpickling trusts the sender.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

_COUNT = struct.Struct("<I")
_MAX_IOVEC = 512

Buffer: TypeAlias = bytes | bytearray | memoryview


class Closed(Exception):
    """The other side has closed the stream."""


def send_frame(stream: socket.socket, value: object) -> None:
    """Write one value. Callers that share a stream take turns."""
    send_parts(stream, to_parts(value))


def receive_frame(stream: socket.socket) -> Any:
    """Read one value; its arrays lie in the buffers they were read into."""
    return from_parts(receive_parts(stream))


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


def _send_all(stream: socket.socket, parts: list[memoryview]) -> None:
    waiting = [part for part in parts if part.nbytes]
    while waiting:
        try:
            sent = stream.sendmsg(waiting[:_MAX_IOVEC])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed("the stream is closed") from error
        while waiting and sent >= waiting[0].nbytes:
            sent -= waiting.pop(0).nbytes
        if sent:
            waiting[0] = waiting[0][sent:]


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
