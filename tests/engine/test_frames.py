"""Values cross a socket whole, their arrays without a copy in between."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tinkex.engine.frames import SMALL, Closed, receive_frame, send_frame, send_now, take_frame
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


def test_a_small_value_crosses_without_a_wait_and_its_arrays_can_be_written_to(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, two = pair
    for number in range(3):
        assert send_now(one, (number, np.arange(5)))
    for number in range(3):
        found, array = take_frame(two, lambda _: True)
        array += 1
        assert (found, array.tolist()) == (number, [1, 2, 3, 4, 5])


def test_what_is_large_or_not_all_there_or_not_wanted_is_left_as_it_is(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, two = pair
    two.setblocking(True)
    assert not send_now(one, np.zeros(SMALL, np.uint8)), "there is never room for so much"
    send_frame(one, "wanted by nobody")
    assert take_frame(two, lambda _: False) is None
    assert receive_frame(two) == "wanted by nobody"
    one.sendall(b"\x01\0")
    assert take_frame(two, lambda _: True) is None
    one.close()


def test_a_stream_whose_reader_is_slow_takes_no_more_at_once_than_it_has_room_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, two = pair
    sent = 0
    while send_now(one, bytes(4096)):
        sent += 1
    assert 0 < sent < SMALL // 2048
    assert all(len(receive_frame(two)) == 4096 for _ in range(sent))
    assert send_now(one, "there is room again")
