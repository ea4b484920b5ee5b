"""Commands of a run stay in order, forward passes are taken together, nothing is kept waiting."""

from __future__ import annotations

import numpy as np

from tinkex.engine.messages import Datum, ForwardBackward, OptimStep
from tinkex.engine.process.run_queues import RunQueues


def forward(run: str, tokens: int = 4) -> ForwardBackward:
    return ForwardBackward(f"f{run}", run, (Datum(np.zeros(tokens, np.int32), {}),), "x")


def step(run: str, number: int = 0) -> OptimStep:
    return OptimStep(f"s{run}{number}", run, "adamw", {})


def test_a_run_that_steps_first_shares_the_batch_of_one_that_waits() -> None:
    queues = RunQueues()
    for command in (forward("a"), step("b"), forward("b")):
        queues.add(command)
    assert queues.take_single(()) == step("b")
    assert queues.take_single(()) is None
    assert [each.run for each in queues.take_forward(100)] == ["a", "b"]
    assert not queues


def test_commands_that_keep_coming_do_not_keep_a_batch_waiting() -> None:
    queues = RunQueues()
    queues.add(forward("a"))
    for number in range(2):
        queues.add(step("b", number))
    taken = []
    for number in range(2, 10):
        found = queues.take_single(())
        if found is None:
            break
        taken.append(found.op)
        queues.add(step("b", number))
    assert taken == ["sb0", "sb1"], "what waited when the round began, no more"
    queues.new_round()
    assert queues.take_single(()) == step("b", 2)


def test_a_run_in_a_batch_waits_for_its_end() -> None:
    queues = RunQueues()
    queues.add(step("a"))
    queues.add(step("b"))
    assert queues.take_single({"a"}) == step("b")
    assert queues.take_single({"a"}) is None
    assert queues


def test_a_batch_takes_what_fits_but_at_least_one() -> None:
    queues = RunQueues()
    for run, tokens in (("a", 50), ("b", 20), ("c", 5)):
        queues.add(forward(run, tokens))
    assert [each.run for each in queues.take_forward(10)] == ["a"]
    assert [each.run for each in queues.take_forward(26)] == ["b", "c"]


def test_of_a_run_that_is_held_nothing_is_taken_until_it_is_released() -> None:
    queues = RunQueues()
    queues.add(forward("a"))
    queues.add(step("b"))
    queues.hold("a")
    queues.hold("b")
    assert not queues, "nothing that may be taken"
    assert queues.take_single(()) is None
    assert queues.take_forward(100) == []
    queues.release("a")
    queues.release("b")
    queues.new_round()
    assert queues.take_single(()) == step("b")
    assert [each.run for each in queues.take_forward(100)] == ["a"]
