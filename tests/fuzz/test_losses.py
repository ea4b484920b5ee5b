"""No graph of a custom loss does anything but give a value, be refused, or end its own process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuzz.json_mutation import mutated
from support.losses import LOGPROBS, graph, method, node
from tinkex.engine.errors import UserError
from tinkex.engine.losses.custom.graph import Graph

LONG = "TINKEX_LONG" in os.environ
SEED = int(os.environ.get("TINKEX_SEED", "1"))

DIVISIONS = {"torch.div", "torch.divide", "div", "divide"}
"""Integers divided with truncation: the processor refuses −2⁶³ by −1."""


def test_only_a_known_division_can_end_the_process_of_a_loss() -> None:
    """One operation after the other on extreme values. Another one that kills, or takes a minute,
    is news: it does no harm where losses are evaluated, but it should be known."""
    command = [sys.executable, "-m", "fuzz.losses", str(SEED), "3000" if LONG else "30"]
    tests = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["evaluated"] > 1000
    assert {name: how for name, how in found["deadly"].items() if name not in DIVISIONS} == {}


SOUND = graph(
    node("operator.getitem", LOGPROBS, {"tuple": [{"slice": [0, None, 1]}, {"ellipsis": True}]},
         name="a"),
    node("torch.clamp", {"ref": "a"}, -5, {"float": "inf"}, name="b"),
    method("to", {"ref": "b"}, {"dtype": "float64"}, name="c"),
    node("getattr", {"ref": "c"}, "shape", name="d"),
    node("torch.zeros", {"ref": "d"}, device={"device": "cpu"}, name="e"),
    node("torch.stack", [{"ref": "c"}, {"ref": "e"}], dim=0, name="f"),
    node("torch.sum", {"ref": "f"}),
)  # fmt: skip


def test_a_damaged_graph_is_read_or_refused_by_node() -> None:
    dice = random.Random(SEED)
    text = json.dumps(SOUND).encode()
    Graph((("logprobs", 1),), SOUND, 100)
    refused = []
    for _ in range(100_000 if LONG else 3000):
        refused += _refusals(_read(mutated(text, dice)))
    assert len(refused) > 1000
    assert all(message.startswith("graph: ") for message in refused)


def _refusals(nodes: list[dict[str, Any]]) -> list[str]:
    """What the graph is refused with, if it is."""
    try:
        Graph((("logprobs", 1),), nodes, 100)
    except UserError as error:
        return [str(error)]
    return []


def _read(text: bytes) -> list[dict[str, Any]]:
    """The nodes, as far as the server lets them through: a list of objects."""
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return value if isinstance(value, list) else []


@pytest.mark.parametrize("odd", ["", "x", 5, None, [], {}, [[]], {"ref": {"ref": []}}, 1e400])
def test_an_odd_argument_anywhere_is_read_or_refused(odd: object) -> None:
    for place in range(len(SOUND)):
        for key in ("args", "kwargs", "target", "name", "op"):
            nodes = [dict(each) for each in SOUND]
            nodes[place][key] = [odd] if key == "args" else {"dim": odd} if key == "kwargs" else odd
            assert all(message.startswith("graph: ") for message in _refusals(nodes))
