"""An uploaded loss is computed as it was traced, and reaches nothing but tensor operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from support.losses import LOGPROBS, Node, graph, loss_of, node
from support.training import call, gradient, train
from tinkex.engine.errors import UserError
from tinkex.engine.losses.custom.graph import Graph
from tinkex.engine.losses.custom.operations import FUNCTIONS, METHODS
from tinkex.engine.messages import CheckLoss, Datum, ForwardBackwardResult
from tinkex.engine.training.trainer import Trainer


def traced(fn: Callable[..., Any], inputs: tuple[tuple[str, int], ...]) -> tuple[Node, ...]:
    """The graph as the official client uploads it."""
    client = pytest.importorskip("tinker.lib.public_interfaces.custom_loss")
    handle = client.trace_loss(fn, dict(inputs), "session")
    return tuple(node.model_dump() for node in client.encode_graph(handle).nodes)


def ppo_like(logprobs: Any, old: Any, adv: Any, scale: Any) -> Any:
    ratio = torch.exp(logprobs - old)
    loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv)
    zeros = torch.zeros(logprobs.shape[0], dtype=torch.float32, device=logprobs.device)
    tail = F.relu(logprobs[1:].mean() + logprobs.max(dim=0).values + zeros.sum())
    total = loss.sum() * scale + 0 * torch.where(adv > 0, loss, loss.detach()).sum() + 0 * tail
    return total, {
        "custom/kl:mean": (old - logprobs).mean(),
        "custom/up:sum": (adv > 0).float().sum(),
    }


INPUTS = (("logprobs", 1), ("old", 1), ("adv", 1), ("scale", 0))


def make_datum(rng: np.random.Generator, length: int) -> Datum:
    inputs = {
        "target_tokens": rng.integers(0, 128, length),
        "old": rng.normal(-4, 1, length).astype(np.float32),
        "adv": rng.normal(size=length).astype(np.float32),
        "scale": np.array(2.0, np.float32),
    }
    return Datum(rng.integers(0, 128, length).astype(np.int32), inputs)


def datums(count: int = 3) -> list[Datum]:
    rng = np.random.default_rng(0)
    return [make_datum(rng, length) for length in range(4, 4 + count)]


def test_a_traced_loss_equals_the_built_in_one(trainer: Trainer) -> None:
    data = datums()
    custom = call("run", *data, loss="custom", custom=loss_of(traced(ppo_like, INPUTS), INPUTS))
    (result,) = train(trainer, custom)
    own = gradient(trainer, "run").clone()
    trainer._find("run").gradient = None
    plain = [
        replace(d, inputs={"target_tokens": d.inputs["target_tokens"], "logprobs": d.inputs["old"],
                           "advantages": d.inputs["adv"]})
        for d in data
    ]  # fmt: skip
    (expected,) = train(trainer, call("run", *plain, loss="ppo"))
    assert result.metrics["loss:sum"] == pytest.approx(2 * expected.metrics["loss:sum"], rel=1e-4)
    theirs = 2 * gradient(trainer, "run")
    assert (own - theirs).norm() <= 1e-4 * theirs.norm()
    ups = sum(float((np.asarray(d.inputs["adv"]) > 0).sum()) for d in data)
    assert result.metrics["custom/up:sum"] == ups
    drift = [np.mean(np.asarray(d.inputs["old"]) - o["logprobs"])
             for d, o in zip(data, result.outputs, strict=True)]  # fmt: skip
    assert result.metrics["custom/kl:mean"] == pytest.approx(np.mean(drift), rel=1e-4)


REFUSED: dict[str, list[Node]] = {
    "module": graph(node("os.system", "id")),
    "import": graph(node("builtins.__import__", "os")),
    "eval": graph(node("builtins.eval", "1")),
    "load": graph(node("torch.load", "/etc/passwd")),
    "library": graph(node("torch.ops.load_library", "x.so")),
    "dunder": graph(node("getattr", LOGPROBS, "__class__")),
    "attribute": graph(node("getattr", LOGPROBS, "grad_fn")),
    "data": graph(node("getattr", LOGPROBS, "data")),
    "walking names": graph(node("torch.exp.__globals__", LOGPROBS)),
    "method": graph(node("numpy", LOGPROBS, op="call_method")),
    "item": graph(node("item", LOGPROBS, op="call_method")),
    "save": graph(node("torch.save", LOGPROBS, "/tmp/x")),
    "apply": graph(node("apply_", LOGPROBS, op="call_method")),
    "in place": graph(node("exp_", LOGPROBS, op="call_method")),
    "inplace flag": graph(node("torch.nn.functional.relu", LOGPROBS, inplace=True)),
    "out": graph(node("torch.exp", LOGPROBS, out=LOGPROBS)),
    "random": graph(node("torch.rand", 3)),
    "seed": graph(node("torch.manual_seed", 3)),
    "get_attr": graph(node("weight", op="get_attr")),
    "call_module": graph(node("layer", LOGPROBS, op="call_module")),
    "forward reference": graph(node("torch.exp", {"ref": "later"})),
    "code": graph(node("torch.exp", {"code": "1"})),
    "deep": graph(node("torch.exp", [[[[[[[[[[1]]]]]]]]]])),
    "undeclared": graph({**node("secret", op="placeholder"), "name": "secret"}),
    "metric": [*graph(node("torch.sum", LOGPROBS))[:-1],
               node("output", {"tuple": [{"ref": "x"}, {"dict": {"loss:sum": {"ref": "x"}}}]},
                    op="output", name="output")],
    "no output": graph(node("torch.sum", LOGPROBS))[:-1],
    "extra field": [{**node("torch.sum", LOGPROBS), "stack_trace": "x"}],
    "huge literal": graph(node("operator.mul", LOGPROBS, 10**400)),
}  # fmt: skip

FAILING: dict[str, tuple[list[Node], str]] = {
    "huge zeros": (graph(node("torch.zeros", 10**12)), "cells are over the limit"),
    "huge repeat": (graph(node("repeat", LOGPROBS, 10**9, op="call_method")), "over the limit"),
    "huge expand": (
        graph(
            node("operator.getitem", LOGPROBS, {"tuple": [None]}, name="a"),
            node("expand", {"ref": "a"}, 10**9, -1, op="call_method", name="b"),
            node("torch.exp", {"ref": "b"}),
        ),
        "over the limit",
    ),
    "huge power": (
        graph(
            node("operator.pow", 9, 9**9, name="a"), node("operator.mul", LOGPROBS, {"ref": "a"})
        ),
        "failed",
    ),
    "growing numbers": (
        graph(
            node("operator.mul", 2**52, 2**52, name="a"),
            node("operator.mul", {"ref": "a"}, {"ref": "a"}),
        ),
        "whole number",
    ),
    "text as number": (graph(node("operator.mul", "a", 10**9)), "tensors and numbers only"),
    "list as number": (graph(node("operator.mul", [0], 10**9)), "tensors and numbers only"),
    "two masks": (
        graph(
            node("operator.lt", LOGPROBS, 0, name="a"),
            node("operator.getitem", LOGPROBS, {"tuple": [{"ref": "a"}, {"ref": "a"}]}),
        ),
        "only tensor or list of an index",
    ),
    "endless work": (
        graph(
            node("torch.zeros", 2**22, name="big"),
            *(node("torch.exp", {"ref": "big"}, name=f"n{i}") for i in range(20)),
            node("torch.sum", {"ref": "n0"}),
        ),
        "cells in one datum, the limit",
    ),
    "not a scalar": (graph(node("torch.exp", LOGPROBS)), "must be one number"),
    "bad index": (graph(node("operator.getitem", LOGPROBS, 10**6)), "failed"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_what_is_not_on_the_list_is_refused_when_uploaded(trainer: Trainer, kind: str) -> None:
    with pytest.raises(UserError):
        trainer.check_loss(CheckLoss("op", loss_of(REFUSED[kind])))


@pytest.mark.parametrize("kind", list(FAILING))
def test_what_goes_wrong_inside_is_its_callers_error_alone(trainer: Trainer, kind: str) -> None:
    nodes, message = FAILING[kind]
    loss = loss_of(nodes)
    rng = np.random.default_rng(0)
    plain = Datum(
        rng.integers(0, 128, 6).astype(np.int32), {"target_tokens": rng.integers(0, 128, 6)}
    )
    weighted = replace(plain, inputs={**plain.inputs, "weights": np.ones(6, np.float32)})
    for forward_only in (False, True):
        bad, good = trainer.forward_backward([
            call("run", plain, loss="custom", custom=loss, forward_only=forward_only),
            call("run", weighted),
        ])  # fmt: skip
        assert isinstance(bad, UserError)
        assert message in str(bad)
        assert isinstance(good, ForwardBackwardResult)


def test_too_many_nodes_and_inputs_are_refused() -> None:
    chain = [node("torch.exp", LOGPROBS, name=f"n{i}") for i in range(50)]
    with pytest.raises(UserError, match="52 nodes are over the limit of 40"):
        Graph((("logprobs", 1),), graph(*chain, output="n0"), 40)
    with pytest.raises(UserError, match="logprobs must come first"):
        Graph((("old", 1),), graph(), 40)
    with pytest.raises(UserError, match="rank 3"):
        Graph((("logprobs", 1), ("old", 3)), graph(), 40)


def test_inputs_must_have_the_declared_rank(trainer: Trainer) -> None:
    loss = loss_of(traced(ppo_like, INPUTS), INPUTS)
    (datum,) = datums(1)
    wrong = replace(datum, inputs={**datum.inputs, "old": np.ones((4, 2), np.float32)})
    with pytest.raises(UserError, match="declared rank 1"):
        train(trainer, call("run", wrong, loss="custom", custom=loss))
    lost = replace(datum, inputs={k: v for k, v in datum.inputs.items() if k != "adv"})
    with pytest.raises(UserError, match="'adv' is missing"):
        train(trainer, call("run", lost, loss="custom", custom=loss))
    with pytest.raises(UserError, match="none was given"):
        train(trainer, call("run", datum, loss="custom"))


def test_no_operation_on_the_list_writes_or_leaves_the_tensors() -> None:
    names = {name.rsplit(".", 1)[-1] for name in FUNCTIONS} | set(METHODS)
    assert not {name for name in names if name.endswith("_") and name not in
                ("and_", "or_", "not_")}  # fmt: skip
    assert not names & {"item", "numpy", "tolist", "backward", "data_ptr", "load", "save", "apply"}
