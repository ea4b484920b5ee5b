"""Mirrors: training steps also go to the logbooks people have, whatever these do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tinkex.client.events.bus import TRAINING_MEASURED, EventBus
from tinkex.client.events.mirrors import attach_mirror
from tinkex.client.training.measurements import Measurements


def train(bus: EventBus, run: str = "r:train:0", steps: int = 2) -> None:
    for step in range(1, steps + 1):
        for part in (1.0, 3.0):
            metrics = {"loss:sum": part * step, "tokens:sum": 2.0, "ratio:mean": part}
            bus.emit(TRAINING_MEASURED, model_id=run, kind="forward_backward", metrics=metrics)
        metrics = {"optim/step": float(step), "optim/grad_norm": 0.5, "learning_rate": 0.1}
        bus.emit(TRAINING_MEASURED, model_id=run, kind="optim_step", metrics=metrics)


def test_the_calls_of_a_step_become_one_record() -> None:
    bus, records = EventBus(), []
    detach = attach_mirror(lambda *record: records.append(record), bus=bus)
    train(bus)
    detach()
    assert [(run, step) for run, step, _ in records] == [("r:train:0", 1), ("r:train:0", 2)]
    assert records[1][2] == {
        "loss:sum": 8.0,
        "tokens:sum": 4.0,
        "ratio:mean": 3.0,
        "loss": 2.0,
        "optim/grad_norm": 0.5,
        "learning_rate": 0.1,
    }
    train(bus)
    assert len(records) == 2, "a mirror that was detached hears nothing"


def test_a_loss_of_ones_own_is_mirrored_as_it_was_made() -> None:
    bus, records = EventBus(), []
    detach = attach_mirror(lambda *record: records.append(record), bus=bus)
    metrics = {"loss:sum": 0.25, "surrogate_loss:sum": 7.0, "tokens:sum": 40.0}
    bus.emit(TRAINING_MEASURED, model_id="r", kind="forward_backward", metrics=metrics)
    bus.emit(TRAINING_MEASURED, model_id="r", kind="optim_step", metrics={})
    detach()
    assert records[0][2]["loss"] == 0.25


def test_a_mirror_that_fails_is_named_once_and_disturbs_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, tried, good = EventBus(), [], []

    def broken(run: str, step: int, values: Mapping[str, float]) -> None:
        tried.append(step)
        raise OSError("the disk is full")

    detach = [
        attach_mirror(broken, bus=bus),
        attach_mirror(lambda *record: good.append(record), bus=bus),
    ]
    train(bus, steps=3)
    for end in detach:
        end()
    assert tried == [1]
    assert len(good) == 3
    assert len([each for each in caplog.records if "gets nothing more" in each.message]) == 1


class RecordedPackage(ModuleType):
    """`wandb` and `trackio` as far as they are called: what was asked of them, in order."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[Any, ...]] = []

    def setup(self) -> None:
        """Only `wandb` has one."""
        assert self.__name__ == "wandb"

    def init(self, **settings: Any) -> Any:
        self.calls.append(("init", settings))
        package, name = self, settings["name"]

        class Run:
            def log(self, values: dict[str, float], step: int) -> None:
                package.calls.append(("log", name, step, values["loss"]))

            def finish(self) -> None:
                package.calls.append(("finish", name))

        return Run()


@pytest.mark.parametrize(
    ("package", "more"), [("wandb", {"reinit": "create_new"}), ("trackio", {})]
)
def test_a_project_gets_a_run_for_each_run(
    monkeypatch: pytest.MonkeyPatch, package: str, more: dict[str, str]
) -> None:
    bus, recorded = EventBus(), RecordedPackage(package)
    monkeypatch.setitem(sys.modules, package, recorded)
    detach = attach_mirror(f"{package}:sailing", bus=bus, config={"seed": 1})
    train(bus, "a", steps=1)
    train(bus, "b", steps=1)
    detach()
    common = {"project": "sailing", "config": {"seed": 1}, **more}
    assert recorded.calls == [
        ("init", {"name": "a", **common}),
        ("log", "a", 1, 1.0),
        ("init", {"name": "b", **common}),
        ("log", "b", 1, 1.0),
        ("finish", "a"),
        ("finish", "b"),
    ]


_ENDS_ITSELF = """
import atexit, sys, time
from types import ModuleType

from tinkex.client.events.bus import TRAINING_MEASURED, EventBus
from tinkex.client.events.mirrors import attach_mirror

class Run:
    def log(self, values, step):
        print("log", step)
    def finish(self):
        print("finish")

def init(**_):
    package.setup()
    time.sleep(0.5)  # as a real one does; the program below is over meanwhile
    return Run()

def setup(begun=[]):
    if not begun:
        begun.append(atexit.register(print, "the package ends"))

package = sys.modules["wandb"] = ModuleType("wandb")
package.init, package.setup = init, setup
bus = EventBus()
attach_mirror("wandb:x", bus=bus)
for step in (1, 2):
    bus.emit(TRAINING_MEASURED, model_id="r", kind="optim_step", metrics={"optim/step": step})
"""


def test_a_package_that_ends_with_the_process_is_told_everything_before() -> None:
    """As `wandb` does: its own hook is registered when it begins, and ends all its runs."""
    done = subprocess.run(
        [sys.executable, "-c", _ENDS_ITSELF], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["log 1", "log 2", "finish", "the package ends"]
    assert done.stderr == ""


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    bus = EventBus()
    detach = attach_mirror(f"tensorboard:{tmp_path}", bus=bus)
    train(bus)
    detach()
    [path] = (tmp_path / "r_train_0").iterdir()
    data, found = path.read_bytes(), {}
    while data:
        size = int.from_bytes(data[:8], "little")
        body = data[12 : 12 + size]
        assert int.from_bytes(data[12 + size : 16 + size], "little") == masked_crc32c(body)
        event = Event.FromString(body)
        found |= {(each.tag, event.step): each.simple_value for each in event.summary.value}
        data = data[16 + size :]
    assert found["loss", 1] == 1.0
    assert found["loss", 2] == 2.0
    assert found["loss/sum", 2] == 8.0


def test_a_package_that_is_missing_is_named_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for missing in ("wandb", "tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match="pip install wandb"):
        attach_mirror("wandb:x", bus=EventBus())
    with pytest.raises(ImportError, match="pip install tensorboardX"):
        attach_mirror("tensorboard:x", bus=EventBus())


def test_an_unknown_mirror_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="tensorboard:FOLDER, wandb:PROJECT"):
        attach_mirror("excel:sheet", bus=EventBus())


def test_metrics_are_told_in_the_order_of_the_calls_whatever_order_results_come_in() -> None:
    told: list[tuple[str, Mapping[str, float]]] = []
    measurements = Measurements(lambda kind, metrics: told.append((kind, metrics)))
    first = measurements.expect("forward_backward")
    second = measurements.expect("optim_step", {"learning_rate": 0.1})
    third = measurements.expect("forward_backward")
    measurements.fill(second, {"a": 2.0})
    assert told == []
    measurements.fill(first, {"a": 1.0})
    assert told == [
        ("forward_backward", {"a": 1.0}),
        ("optim_step", {"a": 2.0, "learning_rate": 0.1}),
    ]
    fourth = measurements.expect("optim_step")
    measurements.fill(fourth, {"a": 4.0})
    measurements.fill(third, None)
    assert told[2:] == [("optim_step", {"a": 4.0})]
