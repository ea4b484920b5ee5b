"""Units of work are charged what the device took for them, whenever that becomes known."""

from __future__ import annotations

import pytest
import torch

from tinkex.engine.process.device_clock import Instant, Mark, Stopwatch, marks_of
from tinkex.engine.process.interleave import Interleave


class Device:
    """A GPU on a clock: `launch` returns at once, the work is done behind the host's back."""

    def __init__(self) -> None:
        self.now = 0.0
        self.free_at = 0.0
        self.idle = 0.0

    def launch(self, seconds: float, host: float = 0.001) -> None:
        self.now += host
        self.idle += max(0.0, self.now - self.free_at)
        self.free_at = max(self.now, self.free_at) + seconds

    def wait(self) -> None:
        self.now = max(self.now, self.free_at)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def watch(self) -> Stopwatch:
        return Stopwatch(self.mark, lambda: self.now, self.sleep)

    def mark(self) -> Mark:
        return _Mark(self)


class _Mark:
    def __init__(self, device: Device) -> None:
        self._device, self.at = device, max(device.now, device.free_at)

    @property
    def passed(self) -> bool:
        return self._device.now >= self.at

    def wait(self) -> None:
        self._device.now = max(self._device.now, self.at)

    def since(self, earlier: Mark) -> float:
        assert isinstance(earlier, _Mark)
        return self.at - earlier.at


@pytest.mark.parametrize("train_s", [0.25, 0.02])
def test_equal_shares_are_shares_of_the_devices_time(train_s: float) -> None:
    """A micro-batch returns when it is queued; its time must not be charged to the next step."""
    device, policy = Device(), Interleave(0.5)
    watch, used = device.watch(), {"train": 0.0, "sample": 0.0}
    while device.now < 30.0:
        for seconds in watch.ended():
            used[policy.spent(seconds)] += seconds
        turn = policy.next(training=True, sampling=True)
        with watch.unit():
            if turn == "train":
                device.launch(train_s)
            else:
                device.launch(0.015)
                device.wait()
    assert used["train"] == pytest.approx(used["sample"], rel=0.05)


def test_the_host_runs_ahead_by_two_units_and_the_device_is_never_idle() -> None:
    device = Device()
    watch = device.watch()
    for _ in range(100):
        with watch.unit():
            device.launch(0.1)
        assert device.free_at - device.now <= 2 * 0.1
    assert device.idle == pytest.approx(0.001)
    assert sum(watch.ended()) == pytest.approx(9.8, abs=0.1)


@pytest.mark.parametrize("host_s", [0.001, 0.008])
def test_who_comes_while_long_units_run_goes_before_the_next(host_s: float) -> None:
    """What is next is settled shortly before the device is free, and it is never idle for that."""
    device = Device()
    watch = device.watch()
    for number in range(100):
        watch.wait()
        if number > 1:
            assert device.free_at - device.now <= 0.012 + 2 * host_s
        with watch.unit():
            device.launch(0.1, host_s)
    assert device.idle == pytest.approx(host_s)


def test_units_that_take_the_host_as_long_as_the_device_are_queued_at_once() -> None:
    device = Device()
    watch = device.watch()
    for _ in range(100):
        with watch.unit():
            device.launch(0.1, host=0.06)
    assert device.idle == pytest.approx(0.06)
    assert device.free_at == pytest.approx(10.06)


def test_a_unit_that_ends_sooner_than_the_one_before_leaves_the_device_idle_for_a_moment() -> None:
    device, asked = Device(), [0.1, 0.1, 0.005] * 30
    watch = device.watch()
    for seconds in asked:
        with watch.unit():
            device.launch(seconds)
    assert device.free_at - sum(asked) < len(asked) * 0.002


def test_on_a_cpu_a_unit_has_ended_when_it_returns() -> None:
    watch = Stopwatch(marks_of(torch.device("cpu")))
    with watch.unit():
        pass
    assert len(list(watch.ended())) == 1
    assert list(watch.ended()) == []
    earlier = Instant()
    assert Instant().since(earlier) >= 0.0
