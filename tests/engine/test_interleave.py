"""Training and sampling both get on, and neither waits longer than the policy says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.engine.process.interleave import Interleave, Turn


def turns(policy: Interleave, train_s: float, step_s: float, count: int) -> list[Turn]:
    found: list[Turn] = []
    for _ in range(count):
        turn = policy.next(training=True, sampling=True)
        assert turn is not None
        policy.spent(train_s if turn == "train" else step_s)
        found.append(turn)
    return found


class Awaiting:
    """An engine on a clock of its own, whose trainer sends a step when it has the last one's
    result: `micro_batches` of `train_s` each, and `away_s` between result and next step."""

    def __init__(self, micro_batches: int, train_s: float, step_s: float, away_s: float) -> None:
        self.policy = Interleave(0.5)
        self.now, self.steps = 0.0, 0
        self._micro_batches, self._left = micro_batches, micro_batches
        self._train_s, self._step_s, self._away_s = train_s, step_s, away_s
        self._back = 0.0

    def turn(self, sampling: bool, until: float = math.inf) -> Turn | None:
        turn = self.policy.next(training=self.now >= self._back, sampling=sampling)
        if turn is None:
            self.now = min(self._back, until)
            return None
        took = self._train_s if turn == "train" else self._step_s
        self.now += took
        self.policy.spent(took)
        if turn == "train":
            self._left -= 1
            if not self._left:
                self.steps += 1
                self._left, self._back = self._micro_batches, self.now + self._away_s
        return turn

    def sample(self, tokens: int, away_s: float = 0.0) -> float:
        """How long a sample takes that is asked for so long after the one before it."""
        begun = self.now + away_s
        while self.now < begun:
            self.turn(sampling=False, until=begun)
        while tokens:
            tokens -= self.turn(sampling=True) == "sample"
        return self.now - begun


@pytest.mark.parametrize("micro_batches", [1, 8])
@pytest.mark.parametrize("away_s", [0.0, 0.008, 0.5])
def test_equal_shares_hold_beside_a_trainer_that_awaits_each_result(
    micro_batches: int, away_s: float
) -> None:
    alone = Awaiting(micro_batches, 0.1, 0.004, away_s)
    while alone.now < 60.0:
        alone.turn(sampling=False)
    engine = Awaiting(micro_batches, 0.1, 0.004, away_s)
    times = []
    while engine.now < 60.0:
        times.append(engine.sample(64, away_s=0.008))
    assert sum(times) / len(times) <= 2.2 * 64 * 0.004
    assert engine.steps >= 0.45 * alone.steps


def test_whoever_is_alone_has_every_turn() -> None:
    policy = Interleave(0.5)
    assert policy.next(training=False, sampling=False) is None
    for _ in range(3):
        assert policy.next(training=True, sampling=False) == "train"
        assert policy.spent(1.0) == "train"
    for _ in range(3):
        assert policy.next(training=False, sampling=True) == "sample"
        assert policy.spent(1.0) == "sample"


def test_equal_shares_give_equal_time() -> None:
    found = turns(Interleave(0.5), train_s=1.0, step_s=0.25, count=50)
    assert found[:5] == ["train", "sample", "sample", "sample", "sample"]
    assert found.count("sample") == 4 * found.count("train")


def test_a_long_sampling_step_is_made_up_for() -> None:
    found = turns(Interleave(0.5), train_s=0.25, step_s=1.0, count=50)
    assert found.count("train") == 4 * found.count("sample")


def test_samples_that_are_each_awaited_lose_nothing_between_two() -> None:
    policy = Interleave(0.5)
    assert turns(policy, train_s=1.0, step_s=0.25, count=2) == ["train", "sample"]
    assert policy.next(training=True, sampling=False) == "train"
    policy.spent(1.0)
    found = turns(policy, train_s=1.0, step_s=0.25, count=8)
    assert found == ["sample"] * 7 + ["train"], "what was left of the first second, and another"


def test_a_side_that_was_idle_is_owed_one_unit_at_most() -> None:
    policy = Interleave(0.5)
    for _ in range(100):
        assert policy.next(training=True, sampling=False) == "train"
        policy.spent(1.0)
    found = turns(policy, train_s=1.0, step_s=0.5, count=4)
    assert found == ["sample", "sample", "train", "sample"]
    for _ in range(100):
        assert policy.next(training=False, sampling=True) == "sample"
        policy.spent(1.0)
    assert turns(policy, train_s=1.0, step_s=1.0, count=4) == ["train", "sample"] * 2


def test_sampling_goes_after_training_whose_time_is_not_known_yet() -> None:
    policy = Interleave(0.5)
    assert policy.next(training=True, sampling=True) == "train"
    assert policy.next(training=True, sampling=True) == "sample"
    assert policy.next(training=True, sampling=True) == "sample"
    assert [policy.spent(1.0), policy.spent(0.25)] == ["train", "sample"]
    assert policy.next(training=True, sampling=True) == "sample"


@given(
    share=st.floats(0.05, 0.95),
    train_s=st.floats(1e-3, 10.0),
    step_s=st.floats(1e-3, 1.0),
)
def test_waits_are_bounded_whatever_units_take(share: float, train_s: float, step_s: float) -> None:
    found = turns(Interleave(share), train_s, step_s, 300)
    runs = "".join("t" if turn == "train" else "s" for turn in found)
    ratio = share / (1 - share)
    steps = max(len(part) for part in runs.split("t"))
    assert (steps - 1) * step_s <= train_s * ratio * (1 + 1e-9), "at most its share and a step"
    units = max(len(part) for part in runs.split("s"))
    assert (units - 1) * train_s * ratio <= step_s * (1 + 1e-9), "at most its share and a unit"


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_a_share_that_would_starve_a_side_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="sampling_share"):
        Interleave(share)
