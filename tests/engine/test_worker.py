"""A worker answers every command once, in order, whether it runs here or in a child process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from support.losses import LOGPROBS, graph, loss_of, node
from support.sampling import (
    DEVICE,
    prompt_of,
    sample,
    tiny_folder,
    tokens_of,
    write_random_adapter,
)
from support.slow_losses import Slow
from support.training import adam_step
from tinkex.engine.messages import (
    Cancel,
    Command,
    CreateRun,
    Datum,
    Done,
    DropRun,
    DropWeights,
    Event,
    Failed,
    ForwardBackward,
    ForwardBackwardResult,
    LoadRun,
    LoadWeights,
    LoraSpec,
    OptimStep,
    Ping,
    Progress,
    Ready,
    SampleResult,
    SaveRun,
    ServeRun,
    Stats,
    WeightsRef,
)
from tinkex.engine.process.parent import Child, RemoteWorker, WorkerDied
from tinkex.engine.process.worker import build_worker
from tinkex.engine.settings import WorkerConfig


def config(**changes: object) -> WorkerConfig:
    settings = {"kv_bytes": 16 << 20, "device": DEVICE, "dtype": "float32"} | changes
    return WorkerConfig(str(tiny_folder()), **settings)  # type: ignore[arg-type]


class Local:
    """The same face for a worker in this thread as `RemoteWorker` has."""

    def __init__(self, **changes: object) -> None:
        self._events: list[Event] = []
        self.worker = build_worker(config(**changes), self._events.append)

    def send(self, command: Command) -> None:
        self.worker.submit(command)

    def receive(self) -> Event:
        while not self._events:
            self.worker.turn()
        return self._events.pop(0)

    def close(self) -> None:
        self.worker.stop()
        self.worker.run()


Engine = Local | RemoteWorker


@contextmanager
def engine(kind: str) -> Iterator[Engine]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    made: Engine = Local() if kind == "thread" else RemoteWorker(config())
    try:
        assert isinstance(made.receive(), Ready)
        yield made
    finally:
        made.close()
        torch.set_num_threads(before)


@pytest.fixture
def local() -> Iterator[Local]:
    with engine("thread") as made:
        assert isinstance(made, Local)
        yield made


def answers(worker: Engine, *commands: Command) -> dict[str, Event]:
    """Send all, then wait until each is answered exactly once."""
    for command in commands:
        worker.send(command)
    found: dict[str, Event] = {}
    while len(found) < len(commands):
        event = worker.receive()
        if isinstance(event, Done | Failed):
            assert event.op not in found
            found[event.op] = event
    return found


def result_of(event: Event) -> object:
    assert isinstance(event, Done), event
    return event.result


def datum(seed: int, length: int = 24) -> Datum:
    tokens = prompt_of(seed, length + 1)
    weights = np.ones(length, np.float32)
    return Datum(tokens[:-1], {"target_tokens": tokens[1:].astype(np.int64), "weights": weights})


def forward_backward(op: str, run: str, *data: Datum) -> ForwardBackward:
    return ForwardBackward(op, run, data, "cross_entropy")


def step(op: str, run: str) -> OptimStep:
    return OptimStep(op, run, "adamw", adam_step(run).params)


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


def leaves(value: object) -> Iterator[object]:
    """The plain values and arrays inside a result, in order."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for key in sorted(value):
            yield key
            yield from leaves(value[key])
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            if name != "prepared":  # how far idle time went
                yield from leaves(getattr(value, name))
    else:
        yield value


def assert_same(one: object, two: object) -> None:
    """Equal, numbers within rounding: what shares a batch depends on when it arrives."""
    for left, right in zip(leaves(one), leaves(two), strict=True):
        if (isinstance(left, np.ndarray) and left.dtype.kind == "f") or isinstance(left, float):
            np.testing.assert_allclose(left, right, atol=1e-4, rtol=1e-4)  # type: ignore[arg-type]
        elif isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right)  # type: ignore[arg-type]
        else:
            assert left == right


def tokens(event: Event) -> list[list[int]]:
    result = result_of(event)
    assert isinstance(result, SampleResult)
    return tokens_of(result)


def test_a_child_process_gives_the_same_answers_as_this_thread(tmp_path: Path) -> None:
    here, there = tell("thread", tmp_path / "one"), tell("process", tmp_path / "two")
    assert here.keys() == there.keys()
    for op, event in here.items():
        assert_same(result_of(event), result_of(there[op]))
    stats = result_of(here["ping"])
    assert isinstance(stats, Stats)
    assert (stats.runs, stats.weights, stats.pages_used) == (3, 2, 0)
    assert stats.train_tokens == 2 * 3 * 33 + 24


def test_trainer_and_sampler_agree_on_the_same_weights(local: Local, tmp_path: Path) -> None:
    target = tmp_path / "weights"
    target.mkdir()
    found = answers(
        local,
        CreateRun("create", "r", LoraSpec(8, seed=1)),
        forward_backward("one", "r", datum(1)),
        step("step", "r"),
        SaveRun("save", "r", str(target), False),
        ForwardBackward("score", "r", (datum(2, 40),), "cross_entropy", forward_only=True),
    )
    trained = result_of(found["score"])
    assert isinstance(trained, ForwardBackwardResult)
    whole = prompt_of(2, 41)
    found = answers(
        local,
        LoadWeights("load", "w", WeightsRef(str(target))),
    ) | answers(local, sample("s", whole, weights="w", asks={"prompt_logprobs": True}))
    served = result_of(found["s"])
    assert isinstance(served, SampleResult)
    assert served.prompt_logprobs is not None
    np.testing.assert_allclose(
        served.prompt_logprobs[1:], trained.outputs[0]["logprobs"], atol=1e-4
    )


def test_heads_of_several_runs_become_one_batch_and_orders_hold(local: Local) -> None:
    runs = [f"r{i}" for i in range(4)]
    answers(local, *(CreateRun(run, run, LoraSpec(4, seed=1)) for run in runs))
    begun: list[list[str]] = []
    begin = local.worker._trainer.begin
    local.worker._trainer.begin = lambda commands: (  # type: ignore[method-assign]
        begun.append([command.run for command in commands]) or begin(commands)
    )
    commands: list[Command] = []
    for i in range(2):
        for run in runs:
            commands += [forward_backward(f"{run}-{i}", run, datum(1)), step(f"{run}-s{i}", run)]
    order: list[str] = []
    for command in commands:
        local.send(command)
    while len(order) < len(commands):
        event = local.receive()
        assert isinstance(event, Done), event
        order.append(event.op)
    assert begun == [runs, runs]
    for run in runs:
        own = [op for op in order if op.startswith(run)]
        assert own == [f"{run}-0", f"{run}-s0", f"{run}-1", f"{run}-s1"]


def test_failures_are_answered_and_change_nothing(local: Local, tmp_path: Path) -> None:
    answers(local, CreateRun("create", "r", LoraSpec(4, seed=1)))
    bad = Datum(np.array([1, 999], np.int32), datum(1, 2).inputs)
    commands: list[tuple[Command, str]] = [
        (CreateRun("twice", "r", LoraSpec(4)), "exists already"),
        (CreateRun("rank", "x", LoraSpec(4000)), "rank 4000"),
        (forward_backward("vocab", "r", bad), "999"),
        (forward_backward("stranger", "nobody", datum(1)), "not known"),
        (ForwardBackward("loss", "r", (datum(1),), "magic"), "magic"),
        (LoadWeights("damaged", "w", WeightsRef(str(tmp_path))), "adapter_config.json"),
        (DropWeights("base", ""), "cannot be dropped"),
        (sample("weights", [1], weights="w"), "not loaded"),
        (DropRun("gone", "nobody"), "not known"),
    ]
    found = answers(local, *(command for command, _ in commands))
    for command, message in commands:
        event = found[command.op]
        assert isinstance(event, Failed), event
        assert event.kind == ("lost" if message == "not known" else "user")
        assert message in event.message
    good = result_of(answers(local, forward_backward("good", "r", datum(1)))["good"])
    with engine("thread") as fresh:
        answers(fresh, CreateRun("create", "r", LoraSpec(4, seed=1)))
        same = result_of(answers(fresh, forward_backward("good", "r", datum(1)))["good"])
    assert_same(good, same)


def test_an_unexpected_error_fails_its_command_and_the_engine_goes_on(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a cable was cut")

    with monkeypatch.context() as patch:
        patch.setattr(local.worker._sampler._forward, "hidden", broken)
        patch.setattr(local.worker._trainer, "create_run", broken)
        found = answers(local, sample("s", [1, 2]), CreateRun("c", "r", LoraSpec(4)))
    for event in found.values():
        assert isinstance(event, Failed)
        assert (event.kind, event.message) == ("server", "RuntimeError: a cable was cut")
    assert isinstance(answers(local, sample("s", [1, 2]))["s"], Done)


def test_running_out_of_memory_fails_what_was_under_way_alone(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(local.worker._sampler._forward, "hidden", greedy)
        event = answers(local, sample("s", [1, 2]))["s"]
    assert isinstance(event, Failed)
    assert "out of memory" in event.message
    assert isinstance(answers(local, sample("s", [1, 2]))["s"], Done)


def test_a_cancelled_sample_fails_once_and_frees_its_pages(local: Local) -> None:
    local.send(sample("long", prompt_of(1, 9), max_tokens=500, stream=True))
    while not isinstance(local.receive(), Progress):
        pass
    local.send(Cancel("stop", "long"))
    ends = [
        event for event in (local.receive() for _ in range(2)) if isinstance(event, Failed | Done)
    ]
    failed, done = ends
    assert isinstance(failed, Failed)
    assert (failed.op, failed.kind, done.op) == ("long", "cancelled", "stop")
    assert isinstance(answers(local, Cancel("late", "long"))["late"], Done)
    stats = result_of(answers(local, Ping("again"))["again"])
    assert isinstance(stats, Stats)
    assert stats.pages_used == 0


def test_training_and_sampling_under_way_both_get_on(local: Local) -> None:
    answers(local, CreateRun("create", "r", LoraSpec(4, seed=1)))
    local.send(sample("s", prompt_of(1, 9), max_tokens=200, stream=True))
    while not isinstance(local.receive(), Progress):
        pass
    for i in range(6):
        local.send(forward_backward(f"f{i}", "r", datum(i)))
        local.send(step(f"o{i}", "r"))
    order: list[str] = []
    while not {"s", "o5"} <= set(order):
        event = local.receive()
        assert not isinstance(event, Failed | Ready)
        order.append("." if isinstance(event, Progress) else event.op)
    # How many steps of one fit beside the other depends on the device's speed at each.
    assert "." in order[order.index("f0") : order.index("o5")], "sampling got on while training"
    assert order.index("f0") < order.index("s"), "training got on while sampling"


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


def test_weights_stay_what_they_were_when_a_name_is_loaded_again(
    local: Local, tmp_path: Path
) -> None:
    one, two = (write_random_adapter(tmp_path / name, ord(name)) for name in "ab")
    command = sample("s", prompt_of(1, 9), weights="w", temperature=0.0)
    answers(local, LoadWeights("l1", "w", WeightsRef(str(one))))
    first = tokens(answers(local, command)["s"])
    answers(local, LoadWeights("l2", "w", WeightsRef(str(two))))
    assert tokens(answers(local, command)["s"]) == first
    answers(local, DropWeights("d", "w"), LoadWeights("l3", "w", WeightsRef(str(two))))
    assert tokens(answers(local, command)["s"]) != first


def test_a_run_is_sampled_from_at_once_and_says_what_its_files_say(
    local: Local, tmp_path: Path
) -> None:
    (tmp_path / "now").mkdir()
    done = answers(
        local,
        CreateRun("create", "run", LoraSpec(8, seed=1)),
        forward_backward("fb", "run", datum(0)),
        step("step", "run"),
        ServeRun("serve", "run", "served", str(tmp_path / "never")),
        SaveRun("save", "run", str(tmp_path / "now"), training=False),
        forward_backward("fb2", "run", datum(1)),
        step("step2", "run"),
        ServeRun("serve2", "run", "moved", str(tmp_path / "never")),
    )
    assert all(isinstance(event, Done) for event in done.values())
    answers(local, LoadWeights("load", "filed", WeightsRef(str(tmp_path / "now"))))
    asks = {"prompt_logprobs": True}
    found = answers(
        local,
        *(sample(name, datum(0).tokens, weights=name, asks=asks)
          for name in ("served", "filed", "moved")),
    )  # fmt: skip
    assert_same(result_of(found["served"]), result_of(found["filed"]))
    with pytest.raises(AssertionError):
        assert_same(result_of(found["served"]), result_of(found["moved"]))


def test_weights_whose_folder_is_still_to_come_are_never_let_go(tmp_path: Path) -> None:
    local = Local(adapter_bytes=1)
    assert isinstance(local.receive(), Ready)
    folder = tmp_path / "later"
    create = CreateRun("create", "run", LoraSpec(8, seed=1))
    answers(local, create, ServeRun("serve", "run", "w", str(folder)))
    command = sample("before", prompt_of(1, 9), weights="w", temperature=0.0)
    before = tokens(answers(local, command)["before"])
    folder.mkdir()
    answers(local, SaveRun("save", "run", str(folder), training=False), DropRun("drop", "run"))
    after = sample("after", prompt_of(1, 9), weights="w", temperature=0.0)
    assert tokens(answers(local, after)["after"]) == before
    stats = result_of(answers(local, Ping("ping"))["ping"])
    assert isinstance(stats, Stats)
    assert stats.adapter_bytes == 0, "let go once it can be read again"
    local.close()


def test_a_long_forward_pass_does_not_join_a_short_one(local: Local) -> None:
    room = 8 * local.worker._trainer.limits.micro_batch_tokens
    answers(local, *(CreateRun(run, run, LoraSpec(2, seed=1)) for run in ("short", "long")))
    long = [datum(i, 1000) for i in range(room // 1000 + 1)]
    local.send(forward_backward("f-short", "short", datum(1)))
    local.send(forward_backward("f-long", "long", *long))
    event = local.receive()
    assert isinstance(event, Done)
    assert event.op == "f-short"


def test_a_short_call_waits_for_a_micro_batch_of_a_long_one_not_for_all() -> None:
    local = Local(micro_batch_tokens=16)
    answers(local, *(CreateRun(run, run, LoraSpec(2, seed=1)) for run in ("long", "short")))
    local.send(forward_backward("long", "long", *(datum(seed) for seed in range(24))))
    local.worker.turn()
    local.send(forward_backward("short", "short", datum(1)))
    assert local.receive().op == "short"
    local.send(forward_backward("again", "long", datum(2)))  # of a run that is busy: it waits
    assert [local.receive().op for _ in range(2)] == ["long", "again"]


@pytest.mark.parametrize("broken", [False, True])
def test_idle_time_is_used_to_get_ready_and_commands_are_served_all_the_same(
    local: Local, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    forward, ready = local.worker._sampler._forward, threading.Event()
    prepare = forward.prepare

    def watched() -> bool:
        if broken:
            ready.set()
            raise MemoryError("no room")
        if not prepare():
            ready.set()
        return not ready.is_set()

    monkeypatch.setattr(forward, "prepare", watched)
    thread = threading.Thread(target=local.worker.run)
    thread.start()
    assert ready.wait(30)
    local.send(sample("s", [1, 2]))
    while not any(isinstance(event, Done) for event in local._events):
        assert thread.is_alive()
        time.sleep(0.01)
    local.worker.stop()
    thread.join(30)
    assert not prepare() or broken


def test_a_custom_loss_that_takes_long_lets_the_other_runs_step_meanwhile(local: Local) -> None:
    slow = Slow()
    local.worker._trainer._custom = slow  # type: ignore[assignment]
    answers(local, *(CreateRun(f"{run}-create", run, LoraSpec(8)) for run in "ab"))
    targets = {"target_tokens": datum(0).inputs["target_tokens"]}
    loss = loss_of(graph(node("torch.sum", LOGPROBS)))
    data = (Datum(datum(0).tokens, targets),)
    local.send(ForwardBackward("a-fb", "a", data, "custom", custom=loss))
    local.send(forward_backward("a-fb2", "a", datum(1)))
    local.send(step("a-step", "a"))
    for i in range(3):
        found = answers(local, forward_backward(f"b-fb{i}", "b", datum(i)), step(f"b-step{i}", "b"))
        assert all(isinstance(event, Done) for event in found.values())
    slow.finish()
    events = [local.receive() for _ in range(3)]
    assert [event.op for event in events if isinstance(event, Done)] == ["a-fb", "a-fb2", "a-step"]


def test_an_engine_says_whether_its_first_sample_would_have_to_wait(local: Local) -> None:
    def prepared() -> bool:
        stats = result_of(answers(local, Ping("p"))["p"])
        assert isinstance(stats, Stats)
        return stats.prepared

    assert not prepared()
    while local.worker._get_ready():
        pass
    assert prepared()
