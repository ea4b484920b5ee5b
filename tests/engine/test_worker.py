"""A worker answers every command once, in order, whether it runs here or in a child process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from support.engine_workers import (
    Local,
    answers,
    assert_same,
    datum,
    engine,
    forward_backward,
    result_of,
    step,
)
from support.losses import LOGPROBS, graph, loss_of, node
from support.sampling import (
    prompt_of,
    sample,
    tokens_of,
    write_random_adapter,
)
from support.slow_losses import Slow
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
    LoadWeights,
    LoraSpec,
    Ping,
    Progress,
    Ready,
    SampleResult,
    SaveRun,
    ServeRun,
    Stats,
    WeightsRef,
)


@pytest.fixture
def local() -> Iterator[Local]:
    with engine("thread") as made:
        assert isinstance(made, Local)
        yield made


def tokens(event: Event) -> list[list[int]]:
    result = result_of(event)
    assert isinstance(result, SampleResult)
    return tokens_of(result)


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
    local.worker._trainer.begin = lambda commands: (
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
        patch.setattr(local.worker._sampler, "_computed", broken)
        patch.setattr(local.worker._trainer.residency, "make_room", broken)
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
        patch.setattr(local.worker._sampler, "_computed", greedy)
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


def test_who_comes_while_the_device_is_busy_is_in_the_next_unit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU runs behind the host, which waits for it: what comes then need not wait for more."""
    local = Local(micro_batch_tokens=16)
    answers(local, *(CreateRun(run, run, LoraSpec(2, seed=1)) for run in ("long", "short")))
    local.send(forward_backward("long", "long", *(datum(seed) for seed in range(24))))
    local.worker.turn()
    came = [forward_backward("short", "short", datum(1))]
    wait = local.worker._stopwatch.wait

    def busy() -> None:
        while came:
            local.send(came.pop())
        wait()

    monkeypatch.setattr(local.worker._stopwatch, "wait", busy)
    local.worker.turn()
    assert [event.op for event in local._events] == ["short"]


def test_a_custom_loss_that_takes_long_lets_the_other_runs_step_meanwhile(local: Local) -> None:
    slow = Slow()
    local.worker._trainer._custom = slow
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
