"""Values cross a socket whole, their arrays without a copy in between."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tinkex.engine.frames import Closed, receive_frame, send_frame
from tinkex.engine.messages import Datum, ForwardBackward


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        yield one, two


def test_a_command_arrives_as_it_was_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    big = np.arange(3_000_000, dtype=np.float32)
    data = tuple(
        Datum(np.arange(5, dtype=np.int32) + i, {"weights": big if i == 0 else big[:0]})
        for i in range(700)
    )
    sent = ForwardBackward("op", "run", data, "cross_entropy", {"a": 1.0})
    sender = threading.Thread(target=send_frame, args=(one, sent))
    sender.start()
    found = receive_frame(two)
    sender.join()
    assert (found.op, found.loss_config, len(found.data)) == ("op", {"a": 1.0}, 700)
    np.testing.assert_array_equal(found.data[0].inputs["weights"], big)
    assert found.data[699].tokens.tolist() == [699, 700, 701, 702, 703]


def test_arrays_lie_in_the_buffers_they_were_read_into(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    send_frame(pair[0], np.arange(10))
    found = receive_frame(pair[1])
    assert found.base is not None
    assert found.flags.writeable


def test_a_closed_stream_is_told_apart(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    one.close()
    with pytest.raises(Closed):
        receive_frame(two)
    with pytest.raises(Closed):
        send_frame(two, b"x")
