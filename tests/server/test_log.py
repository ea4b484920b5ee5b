"""The order of a run's operations, alone: no disk, no clock, no loop."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.server.operations.kinds import named
from tinkex.server.operations.log import Entry, Gap, RunLog


def _entry(seq: int, kind: str = "forward_backward", at: float = 0.0) -> Entry:
    return Entry(f"r:{seq}", seq, named(kind), b"", at, payload_bytes=10, state="waiting")


def _run(log: RunLog, now: float) -> list[int]:
    """Everything that can run now, in the order it would."""
    ran = []
    while isinstance(entry := log.next(now), Entry):
        log.begin(entry)
        log.finish(entry, failed=False)
        ran.append(entry.seq_id)
    return ran


@given(st.permutations(range(12)))
def test_any_arrival_order_gives_the_same_order(order: list[int]) -> None:
    log, ran = RunLog(), []
    for seq in order:
        log.admit(_entry(seq))
        ran += _run(log, 0.0)
    assert ran == list(range(12))


def test_a_gap_before_chunks_is_waited_for_from_the_latest_chunk() -> None:
    log = RunLog(0, gap_timeout_s=60, gap_grace_s=5)
    log.admit(_entry(2, at=10.0))
    log.admit(_entry(3, at=40.0))
    gap = log.next(99.0)
    assert gap == Gap(missing=1, deadline=100.0)
    assert _run(log, 100.0) == [2, 3]


def test_chunks_that_keep_coming_do_not_put_a_gap_off_for_ever() -> None:
    log = RunLog(0, gap_timeout_s=10, gap_grace_s=5)
    for number, at in enumerate(range(0, 60, 5), start=2):
        log.admit(_entry(number, at=float(at)))
    assert isinstance(log.next(49.0), Gap)
    assert _run(log, 50.0)[0] == 2


def test_a_gap_is_short_once_the_client_has_moved_on() -> None:
    log = RunLog(0, gap_timeout_s=60, gap_grace_s=5)
    log.admit(_entry(2, at=0.0))
    log.admit(_entry(3, "optim_step", at=1.0))
    assert isinstance(log.next(5.9), Gap)
    assert _run(log, 6.0) == [2, 3]


def test_a_skipped_number_is_late_and_an_expected_one_is_not() -> None:
    log = RunLog(0, gap_timeout_s=1, gap_grace_s=1)
    log.admit(_entry(2))
    assert not log.is_late(1)
    assert _run(log, 5.0) == [2]
    assert log.is_late(1)
    assert not log.is_late(3)


def test_nothing_overtakes_an_entry_that_is_being_written() -> None:
    log = RunLog()
    first, second = _entry(0), _entry(1)
    first.state = "accepting"
    log.admit(first)
    log.admit(second)
    assert log.next(1000.0) is None
    first.state = "waiting"
    assert _run(log, 1000.0) == [0, 1]


def test_a_rewind_repeats_what_changes_state_and_resumes_what_was_under_way() -> None:
    log = RunLog()
    kinds = ["create_model", "forward", "forward_backward", "save_weights", "optim_step"]
    for seq, kind in enumerate(kinds):
        log.admit(_entry(seq, kind))
    failed = _entry(5)
    log.admit(failed)
    for seq in range(6):
        log.begin(log.entries[seq])
        if seq < 4:
            log.finish(log.entries[seq], failed=False)
    log.finish(failed, failed=True)
    assert log.rewind() == 2
    order = []
    while isinstance(entry := log.next(0.0), Entry):
        log.begin(entry)
        order.append((entry.seq_id, entry.replay))
        log.finish(entry, failed=False)
    assert order == [(0, True), (2, True), (4, False)]


def test_a_rewind_does_not_wait_again_for_what_was_skipped() -> None:
    log = RunLog(0, gap_timeout_s=1, gap_grace_s=1)
    log.admit(_entry(2))
    assert _run(log, 5.0) == [2]
    log.rewind()
    assert _run(log, 0.0) == [2]


def test_a_snapshot_frees_what_it_covers() -> None:
    log = RunLog()
    for seq in range(4):
        log.admit(_entry(seq))
    assert _run(log, 0.0) == [0, 1, 2, 3]
    assert log.retained_bytes == 40
    assert [entry.seq_id for entry in log.cover(2)] == [0, 1, 2]
    assert (log.base, log.retained_bytes) == (2, 10)
    assert log.is_late(1)
    log.rewind()
    assert _run(log, 0.0) == [3]


def test_settled_means_every_end_up_to_there_is_known() -> None:
    log = RunLog()
    for seq in range(3):
        log.admit(_entry(seq))
        log.begin(log.entries[seq])
    log.finish(log.entries[0], failed=False)
    log.finish(log.entries[2], failed=True)
    assert log.settled(0)
    assert not log.settled(2)


@pytest.mark.parametrize("seed", range(20))
def test_engine_deaths_at_any_moment_keep_order_and_lose_nothing(seed: int) -> None:
    """An engine dies at random; in the end it holds every operation, once, in order."""
    rng = random.Random(seed)
    log, held, saved = RunLog(), [], []
    pending = list(range(30))
    running: list[Entry] = []
    while pending or log.unfinished():
        choice = rng.random()
        if pending and choice < 0.4:
            log.admit(_entry(pending.pop(0)))
        elif choice < 0.7 and isinstance(entry := log.next(0.0), Entry):
            log.begin(entry)
            held.append(entry.seq_id)
            running.append(entry)
        elif choice < 0.9 and running:
            log.finish(running.pop(0), failed=False)
        elif choice < 0.95 and not running:
            log.cover(log.begun_through)
            saved = list(held)
        else:
            held, running = list(saved), []
            log.rewind()
    while isinstance(entry := log.next(0.0), Entry):
        log.begin(entry)
        held.append(entry.seq_id)
        log.finish(entry, failed=False)
    assert held == list(range(30))


def test_the_widest_gap_is_passed_over_in_one_step() -> None:
    """One request with a far number must not make the server count there."""
    log, last = RunLog(0, gap_timeout_s=10), 2**31 - 1
    log.admit(_entry(3))
    log.admit(_entry(last))
    assert isinstance(log.next(9.0), Gap)
    assert _run(log, 10.0) == [3, last]
    log.rewind()
    assert log.next(11.0) == log.find(3)


def test_what_was_passed_over_says_nothing_of_what_lies_behind() -> None:
    """Numbers skipped once are skipped again; those after the last that began are waited for."""
    log = RunLog(0, gap_timeout_s=10, gap_grace_s=10)
    log.admit(_entry(3))
    assert _run(log, 10.0) == [3]
    log.rewind()
    log.admit(_entry(6, at=20.0))
    assert _run(log, 20.0) == [3]
    assert log.next(20.0) == Gap(missing=4, deadline=30.0)
