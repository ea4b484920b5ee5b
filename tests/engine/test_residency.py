"""Runs page between device and host: each comes back bit for bit, and none in use ever leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from support.sampling import make_sampler
from support.training import adam_step, call, random_datum, train
from tinkex.engine.adapters.layout import AdapterLayout, initial_weights
from tinkex.engine.adapters.tensor_files import read_tensors
from tinkex.engine.errors import EngineError, UnknownRun
from tinkex.engine.limits import Limits
from tinkex.engine.messages import CreateRun, Done, DropRun, Event, Failed, LoraSpec
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.pieces import at_once
from tinkex.engine.process.device_clock import Stopwatch, marks_of
from tinkex.engine.process.interleave import Interleave
from tinkex.engine.process.run_queues import RunQueues
from tinkex.engine.process.worker import Worker
from tinkex.engine.training.host_memory import HostMemory
from tinkex.engine.training.trainer import Trainer

RUNS = ("a", "b", "c", "d")


def trainer_with_room_for(decoder: Decoder, runs: int | None, host_bytes: int = 1 << 30) -> Trainer:
    layout = AdapterLayout(decoder.config, LoraSpec(8))
    size = Trainer(decoder).residency.bytes_of(layout)
    budget = None if runs is None else runs * size
    return Trainer(decoder, Limits(run_bytes=budget, host_run_bytes=host_bytes))


def story(trainer: Trainer) -> dict[str, list[torch.Tensor]]:
    """Four runs in turns, with gradients gathered over several turns; their weights at each step
    and their state at the end."""
    for index, run in enumerate(RUNS):
        optimizer = "dimuon" if run == "c" else "adamw"
        trainer.create_run(CreateRun("op", run, LoraSpec(8, seed=index), optimizer))
    seen: dict[str, list[torch.Tensor]] = {run: [] for run in RUNS}
    rng = np.random.default_rng(0)
    for turn in range(3):
        for run in RUNS:
            train(trainer, call(run, random_datum(rng, 12)))
        for run in RUNS if turn else ():
            step = adam_step(run)
            if run == "c":
                params = {"learning_rate": 0.01, "beta1": 0.9, "grad_clip_norm": 0.0}
                step = type(step)("op", run, "dimuon", params)
            trainer.optim_step(step)
            seen[run].append(trainer.residency.get(run).adapter.master.clone())
    for run in RUNS:
        found = trainer.residency.get(run)
        seen[run] += [tensor.clone() for _, tensor in sorted(found.optimizer.tensors.items())]
    return seen


@pytest.mark.parametrize("room", [1, 2, 3])
def test_runs_that_page_are_the_same_to_the_bit_as_runs_that_stay(
    decoder: Decoder, room: int
) -> None:
    stayed = story(trainer_with_room_for(decoder, None))
    paging = trainer_with_room_for(decoder, room)
    paged = story(paging)
    for run in RUNS:
        assert all(map(torch.equal, stayed[run], paged[run]))
    assert paging.runs == len(RUNS)
    assert paging.residency.parked >= len(RUNS) - room
    assert paging.residency.moves >= len(RUNS)


def test_runs_of_a_batch_under_way_stay_and_only_as_many_begin_as_fit(decoder: Decoder) -> None:
    trainer = trainer_with_room_for(decoder, 2)
    for index, run in enumerate(RUNS):
        trainer.create_run(CreateRun("op", run, LoraSpec(8, seed=index)))
    queues = RunQueues()
    for run in RUNS:
        queues.add(call(run, random_datum(np.random.default_rng(1), 12)))
    first = queues.take_forward(1000, (), trainer.residency.admit)
    assert [command.run for command in first] == ["a", "b"]
    batch = trainer.begin(first)
    assert not trainer.residency.admit(["c"]), "both places are in use"
    under_way = [trainer.residency.get(run) for run in "ab"]
    trainer.residency.get("c")
    assert [trainer.residency.get(run) for run in "ab"] == under_way, "the very same"
    for _ in batch:
        pass
    assert all(not isinstance(outcome, Exception) for outcome in batch.outcomes)
    del batch
    assert trainer.residency.admit(["c", "d"])


def test_a_full_host_is_said_with_settings_that_exist_and_nothing_is_lost(
    decoder: Decoder,
) -> None:
    trainer = trainer_with_room_for(decoder, 1, host_bytes=0)
    trainer.create_run(CreateRun("op", "a", LoraSpec(8, seed=1)))
    with pytest.raises(EngineError, match=r"--engine host_run_bytes or run_bytes"):
        trainer.create_run(CreateRun("op", "b", LoraSpec(8, seed=2)))
    assert trainer.runs == 1
    train(trainer, call("a", random_datum(np.random.default_rng(1), 12)))


def test_a_run_that_is_dropped_gives_its_blocks_back(decoder: Decoder) -> None:
    trainer = trainer_with_room_for(decoder, 1)
    for run in ("a", "b"):
        trainer.create_run(CreateRun("op", run, LoraSpec(8, seed=1)))
    assert trainer.residency.host_bytes > 0
    trainer.drop_run(DropRun("op", "a"))
    assert trainer.residency.host_bytes == 0
    with pytest.raises(UnknownRun):
        trainer.drop_run(DropRun("op", "a"))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 64])
def test_vectors_of_any_length_come_back_from_blocks(size: int) -> None:
    host = HostMemory(torch.device("cpu"), budget=1 << 20, block=32)
    vector = torch.arange(size, dtype=torch.float32)
    kept, other = at_once(host.keep(vector)), at_once(host.keep(vector + 1))
    assert host.used == host.needs(iter([4 * size, 4 * size]))
    assert torch.equal(at_once(host.bring(kept)), vector)
    assert torch.equal(at_once(host.bring(other)), vector + 1)
    host.free(kept)
    host.free(other)
    assert host.used == 0


def test_blocks_are_pinned_ahead_once_the_device_is_half_full(decoder: Decoder) -> None:
    trainer = trainer_with_room_for(decoder, 2)
    assert not trainer.residency.prepare()
    trainer.create_run(CreateRun("op", "a", LoraSpec(8, seed=1)))
    pieces = 0
    while trainer.residency.prepare():
        pieces += 1
    assert pieces == 4, "weights, two moments and a gradient"
    assert trainer.residency.host_bytes == 0


def test_a_fresh_adapter_is_the_same_drawn_in_one_piece_and_in_many(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = AdapterLayout(decoder.config, LoraSpec(8))
    whole = at_once(initial_weights(layout, 3, decoder.device))
    monkeypatch.setattr("tinkex.engine.adapters.layout._DRAWN", 37)
    assert torch.equal(at_once(initial_weights(layout, 3, decoder.device)), whole)


def test_a_file_of_tensors_is_the_same_read_in_one_piece_and_in_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"long": torch.randn(1001), "wide": torch.randn(40, 30), "one": torch.randn(1)}
    save_file(tensors, tmp_path / "file")
    monkeypatch.setattr("tinkex.engine.adapters.tensor_files._PIECE", 256)
    pieces = read_tensors(tmp_path / "file", "cpu")
    assert sum(1 for _ in pieces) > 16
    found = at_once(read_tensors(tmp_path / "file", "cpu"))
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_run_on_its_way_has_its_place_and_others_begin_only_beside_it(decoder: Decoder) -> None:
    trainer = trainer_with_room_for(decoder, 2)
    for run in "abc":
        trainer.create_run(CreateRun("op", run, LoraSpec(8, seed=1)))
    assert trainer.residency.admit(["b", "c"])
    arrival = trainer.residency.arrival("a")
    next(arrival)
    assert trainer.residency.admit(["c"])
    assert not trainer.residency.admit(["b", "c"]), "there is room for one beside it"
    at_once(arrival)
    assert not trainer.residency.is_parked("a")


def test_runs_of_others_work_while_one_is_created_or_comes_back(decoder: Decoder) -> None:
    """A small tenant's command is carried out between the pieces of another's move."""
    events: list[Event] = []
    worker = worker_with_room_for(decoder, 2, events.append)
    for run in "abc":
        worker.submit(CreateRun(f"create {run}", run, LoraSpec(8, seed=1)))
    turns_until(worker, events, "create c")
    assert worker._trainer.residency.is_parked("a")
    rng = np.random.default_rng(1)
    worker.submit(replace(call("a", random_datum(rng, 12)), op="away"))
    worker.submit(replace(call("c", random_datum(rng, 12)), op="here"))
    worker.submit(DropRun("drop", "a"))
    turns_until(worker, events, "drop")
    order = [event.op for event in events]
    assert order.index("here") < order.index("away") < order.index("drop")
    assert all(isinstance(event, Done) for event in events)
    assert worker._trainer.runs == 2


def test_runs_of_which_one_fits_take_turns(decoder: Decoder) -> None:
    """Nothing keeps a run on the device whose call was answered."""
    events: list[Event] = []
    worker = worker_with_room_for(decoder, 1, events.append)
    for run in "abc":
        worker.submit(CreateRun(f"create {run}", run, LoraSpec(8, seed=1)))
        turns_until(worker, events, f"create {run}")
    rng = np.random.default_rng(1)
    for turn in range(3):
        for run in "abc":
            op = f"{run} {turn}"
            worker.submit(replace(call(run, random_datum(rng, 12)), op=op))
            turns_until(worker, events, op, at_most=200)
    assert all(isinstance(event, Done) for event in events)


def test_a_run_that_cannot_come_back_fails_its_command_alone(decoder: Decoder) -> None:
    events: list[Event] = []
    worker = worker_with_room_for(decoder, 1, events.append)
    for run in "ab":
        worker.submit(CreateRun(f"create {run}", run, LoraSpec(8, seed=1)))
    turns_until(worker, events, "create b")
    worker._trainer.residency._host.budget = 0
    worker.submit(replace(call("a", random_datum(np.random.default_rng(1), 12)), op="away"))
    turns_until(worker, events, "away")
    failed = next(event for event in events if event.op == "away")
    assert isinstance(failed, Failed)
    assert "the memory for runs is full" in failed.message
    worker.submit(DropRun("drop b", "b"))
    turns_until(worker, events, "drop b")
    worker.submit(replace(call("a", random_datum(np.random.default_rng(1), 12)), op="again"))
    turns_until(worker, events, "again")
    assert isinstance(events[-1], Done)


def worker_with_room_for(decoder: Decoder, runs: int, emit: Callable[[Event], None]) -> Worker:
    trainer = trainer_with_room_for(decoder, runs)
    stopwatch = Stopwatch(marks_of(decoder.device))
    return Worker(trainer, make_sampler(decoder), Interleave(0.5), stopwatch, emit)


def turns_until(worker: Worker, events: list[Event], op: str, at_most: int = 100_000) -> None:
    for _ in range(at_most):
        if any(event.op == op for event in events):
            return
        assert worker.turn(), f"nothing left to do, and {op!r} was not answered"
    raise AssertionError(f"{op!r} was not answered in {at_most} turns")
