"""Python values over a stream socket, their array buffers without copies.

A frame is a count of parts and their sizes, then the parts: a pickle, and the buffers it refers to.
Only for sockets between a process and its own child: unpickling trusts the sender.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_COUNT = struct.Struct("<I")
_MAX_IOVEC = 512


class Closed(Exception):
    """The other side has closed the stream."""


def send_frame(stream: socket.socket, value: object) -> None:
    """Write one value. Callers that share a stream take turns."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    sizes = struct.pack(f"<{len(parts)}Q", *(part.nbytes for part in parts))
    _send_all(stream, [memoryview(_COUNT.pack(len(parts)) + sizes), *parts])


def receive_frame(stream: socket.socket) -> Any:
    """Read one value; its arrays lie in the buffers they were read into."""
    (count,) = _COUNT.unpack(receive_exactly(stream, _COUNT.size))
    sizes = struct.unpack(f"<{count}Q", receive_exactly(stream, 8 * count))
    head, *buffers = [receive_exactly(stream, size) for size in sizes]
    return pickle.loads(head, buffers=buffers)


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
