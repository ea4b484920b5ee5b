"""An engine in a child process answers as one in this thread; its death is told, its end clean."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.engine_workers import (
    answers,
    assert_same,
    config,
    datum,
    engine,
    forward_backward,
    result_of,
    step,
)
from support.sampling import (
    prompt_of,
    sample,
)
from tinkex.engine.frames import send_frame
from tinkex.engine.messages import (
    Command,
    CreateRun,
    Event,
    LoadRun,
    LoadWeights,
    LoraSpec,
    Ping,
    Ready,
    SaveRun,
    Stats,
    WeightsRef,
)
from tinkex.engine.process.parent import Child, RemoteWorker, WorkerDied
from tinkex.engine.settings import WorkerConfig


def story(folder: Path) -> list[list[Command]]:
    """Two runs pipelined, saved, served and sampled; each list is sent at once."""
    for name in ("a", "b", "state"):
        (folder / name).mkdir()
    training: list[Command] = []
    for run in ("a", "b"):
        training.append(CreateRun(f"{run}-create", run, LoraSpec(8, seed=ord(run))))
        for i in range(3):
            training.append(forward_backward(f"{run}-fb{i}", run, datum(i), datum(i + 10, 9)))
            training.append(step(f"{run}-step{i}", run))
        training.append(SaveRun(f"{run}-save", run, str(folder / run), False))
    training.append(SaveRun("state", "a", str(folder / "state"), True))
    serving: list[Command] = [
        LoadWeights("load-a", "a", WeightsRef(str(folder / "a"))),
        LoadWeights("load-b", "b", WeightsRef(str(folder / "b"))),
        LoadRun("again", "c", WeightsRef(str(folder / "state")), optimizer=True, create=True),
    ]
    asks = {"prompt_logprobs": True}
    sampling: list[Command] = [
        sample(f"sample-{weights}", datum(0).tokens, weights=weights, num_samples=2, asks=asks)
        for weights in ("a", "b", "")
    ]
    more: list[Command] = [forward_backward("c-fb", "c", datum(5)), step("c-step", "c")]
    return [training, serving, sampling + more, [Ping("ping")]]


def tell(kind: str, folder: Path) -> dict[str, Event]:
    folder.mkdir()
    found: dict[str, Event] = {}
    with engine(kind) as worker:
        for commands in story(folder):
            found |= answers(worker, *commands)
    return found


def test_a_child_process_gives_the_same_answers_as_this_thread(tmp_path: Path) -> None:
    here, there = tell("thread", tmp_path / "one"), tell("process", tmp_path / "two")
    assert here.keys() == there.keys()
    for op, event in here.items():
        assert_same(result_of(event), result_of(there[op]))
    stats = result_of(here["ping"])
    assert isinstance(stats, Stats)
    assert (stats.runs, stats.weights, stats.pages_used) == (3, 2, 0)


def test_the_death_of_a_child_is_told_with_its_cause() -> None:
    worker = RemoteWorker(config())
    worker.ready()
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        worker.receive()
    with pytest.raises(WorkerDied):
        worker.send(Ping("p"))
    worker.close()


def test_a_spare_child_becomes_the_engine_and_a_dead_one_is_replaced() -> None:
    spare = Child(spare=True)
    made = RemoteWorker(config(), spare)
    try:
        assert isinstance(made.receive(), Ready)
        assert made.pid == spare.process.pid
    finally:
        made.close()
    other = RemoteWorker(config(), spare)
    try:
        assert isinstance(other.receive(), Ready)
        assert other.pid != spare.process.pid
    finally:
        other.close()


def test_a_child_that_cannot_start_says_why(tmp_path: Path) -> None:
    worker = RemoteWorker(WorkerConfig(str(tmp_path), dtype="float32"))
    with pytest.raises(WorkerDied, match=r"config\.json is missing"):
        worker.ready()
    worker.close()


def test_closing_ends_a_child_at_work_and_finishes_its_save(tmp_path: Path) -> None:
    worker = RemoteWorker(config())
    worker.ready()
    answers(worker, CreateRun("c", "r", LoraSpec(4)))
    worker.send(SaveRun("save", "r", str(tmp_path), True))
    worker.send(sample("long", prompt_of(1, 9), max_tokens=900))
    reader = threading.Thread(target=drain, args=(worker.receive,))
    reader.start()
    worker.close(timeout=30.0)
    reader.join()
    assert worker._process.returncode == 0


def drain(receive: Callable[[], Event]) -> None:
    try:
        while True:
            receive()
    except WorkerDied:
        return


@pytest.mark.parametrize("spare", [True, False])
def test_an_engine_that_still_loads_when_its_server_dies_does_not_stay(
    spare: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a torch whose import never ends."""
    begun = tmp_path / "begun"
    loading = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(3600)\n"
    (tmp_path / "torch.py").write_text(loading)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = Child(spare=spare)
    try:
        if not spare:
            send_frame(child.stream, WorkerConfig("nothing"))
        while not begun.exists():
            assert child.is_alive
            time.sleep(0.05)
        child.stream.close()
        assert child.process.wait(timeout=60) == 0
    finally:
        child.process.kill()
        child.process.wait()
        child.stream.close()
