"""Graphs of custom losses as clients upload them, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinkex.engine.messages import CustomLoss, Datum

Node = dict[str, Any]
Inputs = tuple[tuple[str, int], ...]

LOGPROBS = {"ref": "logprobs"}


def node(
    target: str, *args: Any, op: str = "call_function", name: str = "x", **kwargs: Any
) -> Node:
    return {"op": op, "name": name, "target": target, "args": list(args), "kwargs": kwargs}


def method(target: str, *args: Any, name: str = "x", **kwargs: Any) -> Node:
    return node(target, *args, op="call_method", name=name, **kwargs)


def placeholder(name: str) -> Node:
    return node(name, op="placeholder", name=name)


def graph(*nodes: Node, output: str = "x", inputs: Sequence[str] = ("logprobs",)) -> list[Node]:
    pair = {"tuple": [{"ref": output}, {"dict": {}}]}
    end = node("output", pair, op="output", name="output")
    return [*(placeholder(name) for name in inputs), *nodes, end]


def loss_of(
    nodes: Sequence[Node], inputs: Inputs = (("logprobs", 1),), owner: str = "owner"
) -> CustomLoss:
    return CustomLoss(owner, repr((inputs, nodes)).encode(), inputs, tuple(nodes))


def plain_datum(length: int = 6, seed: int = 0) -> Datum:
    """Tokens and targets, nothing else."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 128, length).astype(np.int32)
    return Datum(tokens, {"target_tokens": rng.integers(0, 128, length)})
