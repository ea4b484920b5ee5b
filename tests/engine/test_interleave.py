"""Training and sampling both get on, and neither waits longer than the policy says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.engine.interleave import Interleave, Turn


def turns(policy: Interleave, train_s: float, step_s: float, count: int) -> list[Turn]:
    found: list[Turn] = []
    for _ in range(count):
        turn = policy.next(training=True, sampling=True)
        assert turn is not None
        policy.spent(turn, train_s if turn == "train" else step_s)
        found.append(turn)
    return found


def test_whoever_is_alone_has_every_turn() -> None:
    policy = Interleave(0.5)
    assert policy.next(training=False, sampling=False) is None
    for _ in range(3):
        assert policy.next(training=True, sampling=False) == "train"
        policy.spent("train", 1.0)
    for _ in range(3):
        assert policy.next(training=False, sampling=True) == "sample"
        policy.spent("sample", 1.0)


def test_equal_shares_give_equal_time() -> None:
    found = turns(Interleave(0.5), train_s=1.0, step_s=0.25, count=50)
    assert found[:5] == ["train", "sample", "sample", "sample", "sample"]
    assert found.count("sample") == 4 * found.count("train")


def test_a_side_that_was_idle_is_owed_nothing() -> None:
    policy = Interleave(0.5)
    policy.spent("train", 100.0)
    assert policy.next(training=True, sampling=False) == "train"
    assert policy.next(training=True, sampling=True) == "train"


@given(
    share=st.floats(0.05, 0.95),
    train_s=st.floats(1e-3, 10.0),
    step_s=st.floats(1e-3, 1.0),
)
def test_waits_are_bounded_whatever_units_take(share: float, train_s: float, step_s: float) -> None:
    found = turns(Interleave(share), train_s, step_s, 300)
    runs = "".join("t" if turn == "train" else "s" for turn in found)
    assert "tt" not in runs, "sampling waits for one micro-batch at most"
    longest = max((len(part) for part in runs.split("t")), default=0)
    owed = train_s * share / (1 - share)
    assert (longest - 1) * step_s <= owed * (1 + 1e-9)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_a_share_that_would_starve_a_side_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="sampling_share"):
        Interleave(share)
