"""A custom loss fails its own call: it cannot stop, slow, fill or fail anything else."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

from support.losses import LOGPROBS, Node, graph, loss_of, method, node, plain_datum
from support.slow_losses import Slow
from support.training import call, gradient, random_datum
from tinkex.engine.errors import UserError
from tinkex.engine.losses.custom import evaluation
from tinkex.engine.losses.custom import evaluator as evaluators
from tinkex.engine.losses.custom.evaluator import Evaluator, evaluator
from tinkex.engine.losses.custom.graph import Graph
from tinkex.engine.losses.custom.patience import BURST_S, Patience
from tinkex.engine.losses.custom.replies import Reply
from tinkex.engine.messages import (
    CreateRun,
    CustomLoss,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
)
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.training.batch import Deferred
from tinkex.engine.training.trainer import Trainer

LOWEST = (
    node("torch.full", [4], -1e19, name="far"),
    method("long", {"ref": "far"}, name="lowest"),
)
"""−2⁶³, four times."""


def ending(*nodes: Node) -> list[Node]:
    """The nodes, then a loss that depends on their last value and on the logprobs."""
    last = {"ref": nodes[-1]["name"]}
    return graph(
        *nodes,
        method("double", last, name="as_double"),
        node("torch.sum", {"ref": "as_double"}, name="total"),
        node("torch.sum", LOGPROBS, name="all"),
        node("operator.mul", {"ref": "total"}, {"ref": "all"}),
    )


ATTACKS: dict[str, tuple[list[Node], str]] = {
    "dividing": (
        ending(*LOWEST, node("torch.div", {"ref": "lowest"}, -1, name="d", rounding_mode="trunc")),
        r"node 'd' \(torch.div\) of data\[0\]",
    ),
    "dividing by a tensor": (
        ending(
            *LOWEST,
            node("torch.full", [4], -1, name="minus_one"),
            method("long", {"ref": "minus_one"}, name="m"),
            method("divide", {"ref": "lowest"}, {"ref": "m"}, name="d", rounding_mode="trunc"),
        ),
        r"node 'd' \(divide\) of data\[0\]",
    ),
    "mask and nested list": (
        graph(
            node("torch.ones", [4, 4], name="a"),
            node("operator.gt", {"ref": "a"}, 0, name="b"),
            node("operator.getitem", {"ref": "a"}, {"tuple": [{"ref": "b"}, [[0] * 250] * 250]}),
        ),
        "only tensor or list of an index",
    ),
    "reading": (
        graph(
            node("torch.zeros", [1 << 22], name="a"),
            *(node("torch.logsumexp", {"ref": "a"}, 0, name=f"n{i}") for i in range(1500)),
            node("operator.mul", {"ref": "n0"}, {"ref": "logprobs"}, name="b"),
            node("torch.sum", {"ref": "b"}),
        ),
        "cells read and written in one call, the limit",
    ),
    "rolling along 22 dimensions": (
        graph(
            node("torch.zeros", [2] * 22, name="a"),
            *(
                node("torch.roll", {"ref": "a"}, [1] * 22, list(range(22)), name=f"n{i}")
                for i in range(4)
            ),
            node("torch.sum", {"ref": "n0"}),
        ),
        "cells read and written in one call, the limit",
    ),
    "memory": (
        graph(
            node("torch.zeros", [1 << 22], name="a"),
            method("double", {"ref": "a"}, name="n0"),
            *(node("torch.exp", {"ref": f"n{i}"}, name=f"n{i + 1}") for i in range(15)),
            node("torch.sum", {"ref": "n15"}),
        ),
        "cells in one datum, the limit",
    ),
    "gradient that is not finite": (
        graph(
            node("operator.mul", LOGPROBS, 0.0, name="a"),
            node("torch.sqrt", {"ref": "a"}, name="b"),
            node("torch.sum", {"ref": "b"}),
        ),
        r"gradient by the logprobs of data\[0\] is not finite",
    ),
}


@pytest.mark.parametrize("kind", list(ATTACKS))
def test_an_attack_fails_its_own_call_and_says_why(
    trainer: Trainer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "CALL_WORK", 1 << 28)
    nodes, message = ATTACKS[kind]
    rng = np.random.default_rng(1)
    bad, good = trainer.forward_backward(
        [
            call("run", plain_datum(), loss="custom", custom=loss_of(nodes)),
            call("run", random_datum(rng, 20)),
        ]
    )
    assert isinstance(bad, UserError)
    with pytest.raises(UserError, match=message):
        raise bad
    assert isinstance(good, ForwardBackwardResult)


def test_whatever_ends_a_losss_process_the_next_call_has_another(trainer: Trainer) -> None:
    custom = call("run", plain_datum(), loss="custom", custom=loss_of(SUM))
    assert isinstance(trainer.forward_backward([custom])[0], ForwardBackwardResult)
    process = evaluator()._idle[custom.custom.owner, custom.custom.digest]
    os.kill(process._pid, signal.SIGSEGV)
    (bad,) = trainer.forward_backward([custom])
    assert "ended by the system" in str(bad)
    assert isinstance(trainer.forward_backward([custom])[0], ForwardBackwardResult)


def test_a_failed_loss_leaves_its_neighbours_bits_alone(decoder: Decoder) -> None:
    found = []
    for company in ([], [call("b", plain_datum(20), loss="custom", custom=loss_of(BREAKS))]):
        trainer = Trainer(decoder)
        for run in "ab":
            trainer.create_run(CreateRun("op", run, LoraSpec(8, seed=1)))
        rng = np.random.default_rng(1)
        trainer.forward_backward([call("a", random_datum(rng, 20)), *company])
        found.append(gradient(trainer, "a"))
    assert torch.equal(*found)


BREAKS = graph(node("torch.reshape", LOGPROBS, [7, 7], name="a"), node("torch.sum", {"ref": "a"}))
SUM = graph(node("torch.sum", LOGPROBS))


def test_any_exception_in_a_loss_is_its_calls_own(trainer: Trainer) -> None:
    class Broken(Evaluator):
        def submit(self, *args: Any, **kwargs: Any) -> Future[Reply]:
            raise ZeroDivisionError("whatever")

    trainer._custom = Broken()
    bad, good = trainer.forward_backward(
        [
            call("run", plain_datum(), loss="custom", custom=loss_of(SUM)),
            call("run", random_datum(np.random.default_rng(1), 20)),
        ]
    )
    assert "ZeroDivisionError" in str(bad)
    assert isinstance(good, ForwardBackwardResult)


def test_a_device_named_by_a_loss_is_where_it_is_evaluated(trainer: Trainer) -> None:
    nodes = graph(method("to", LOGPROBS, "meta", name="a"), node("torch.sum", {"ref": "a"}))
    (result,) = trainer.forward_backward(
        [call("run", plain_datum(), loss="custom", custom=loss_of(nodes))]
    )
    assert isinstance(result, ForwardBackwardResult)


@pytest.mark.parametrize(
    "nodes",
    [
        node("torch.nn.functional.relu", LOGPROBS, True),
        node("torch.nn.functional.hardtanh", LOGPROBS, 0, 0.5, True),
        node("torch.nn.functional.threshold", LOGPROBS, 0, 0.5, LOGPROBS),
        node("torch.nn.functional.silu", LOGPROBS, inplace=True),
    ],
)
def test_working_in_place_is_refused_by_position_too(nodes: Node) -> None:
    with pytest.raises(UserError, match=r"nodes\[1\] 'x': it would work in place"):
        Graph((("logprobs", 1),), graph(nodes), 40)


def test_work_is_counted_over_all_datums_of_a_call(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "CALL_WORK", 100_000)
    few = call("run", *[plain_datum()] * 4, loss="custom", custom=loss_of(SUM))
    many = call("run", *[plain_datum()] * 64, loss="custom", custom=loss_of(SUM))
    (good,) = trainer.forward_backward([few])
    assert isinstance(good, ForwardBackwardResult)
    (bad,) = trainer.forward_backward([many])
    assert "in one call, the limit" in str(bad)


def slow_trainer(decoder: Decoder) -> tuple[Trainer, Slow]:
    slow = Slow()
    trainer = Trainer(decoder, losses=slow)
    trainer.create_run(CreateRun("op", "run", LoraSpec(8, seed=1)))
    return trainer, slow


def exhaust(trainer: Trainer, commands: list[ForwardBackward | Deferred]) -> list[Any]:
    batch = trainer.begin(commands)
    for _ in batch:
        pass
    return batch.outcomes


@pytest.mark.parametrize("forward_only", [False, True])
def test_a_slow_loss_leaves_the_batch_and_comes_back_with_the_same_bits(
    decoder: Decoder, trainer: Trainer, forward_only: bool
) -> None:
    data = [plain_datum(length, seed=length) for length in (5, 9, 30)]
    custom = call("run", *data, loss="custom", custom=loss_of(SUM), forward_only=forward_only)
    (expected,) = trainer.forward_backward([custom])
    other, slow = slow_trainer(decoder)
    deferred, good = exhaust(
        other, [custom, call("run", random_datum(np.random.default_rng(1), 9))]
    )
    assert isinstance(good, ForwardBackwardResult)
    assert isinstance(deferred, Deferred)
    assert not deferred.ready
    other._find("run").gradient = None
    slow.finish()
    assert deferred.ready
    (result,) = exhaust(other, [deferred])
    assert isinstance(expected, ForwardBackwardResult)
    assert result.metrics == expected.metrics
    if not forward_only:
        assert torch.equal(gradient(other, "run"), gradient(trainer, "run"))


def test_waiting_takes_at_most_half_of_the_time() -> None:
    now = 0.0
    patience = Patience(lambda: now)
    never: Future[Reply] = Future()
    waits = []

    def wait(futures: list[Future[Reply]], timeout: float) -> None:
        nonlocal now
        waits.append(timeout)
        now += timeout

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tinkex.engine.losses.custom.patience.wait", wait)
        for _ in range(4):
            assert not patience.wait(never)
            now += 0.02
    assert waits == pytest.approx([BURST_S, 0.01, 0.01, 0.01])


class Held(Evaluator):
    """Notes what it would run, and ends it when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Any] = []

    def _start(self, task: Any) -> None:
        self.begun.append(task)

    def end(self, task: Any) -> None:
        self.begun.remove(task)
        self._over(task)


def account(owner: str) -> evaluators.Account:
    loss = CustomLoss(owner, b"", (("logprobs", 1),), tuple(SUM))
    return evaluators.Account(loss, Graph(loss.inputs, loss.nodes, 10), 1 << 30)


def test_one_owner_leaves_places_to_the_others() -> None:
    held = Held()
    for _ in range(100):
        held.submit(account("greedy"), [0], [], True)
    held.submit(account("modest"), [0], [], True)
    owners = [task.account.loss.owner for task in held.begun]
    assert owners == ["greedy"] * evaluators.PER_OWNER + ["modest"]


def test_the_jobs_of_a_call_are_done_in_order() -> None:
    held, one = Held(), account("a")
    for place in range(3):
        held.submit(one, [place], [], True)
    seen = []
    while held.begun:
        (task,) = held.begun
        seen.append(task.places)
        held.end(task)
    assert seen == [[0], [1], [2]]


def test_losses_without_number_take_few_processes(trainer: Trainer) -> None:
    for scale in range(evaluators.KEPT + 3):
        scaled = node("operator.mul", LOGPROBS, scale, name="a")
        loss = loss_of(graph(scaled, node("torch.sum", {"ref": "a"})))
        custom = call("run", plain_datum(), loss="custom", custom=loss)
        (result,) = trainer.forward_backward([custom])
        assert isinstance(result, ForwardBackwardResult)
    assert len(evaluator()._idle) <= evaluators.KEPT
