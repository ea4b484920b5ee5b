"""A malformed graph is its sender's error, which names the node and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from support.losses import LOGPROBS, graph, node
from tinkex.engine.errors import UserError
from tinkex.engine.losses.custom.graph import Graph

MALFORMED: dict[str, tuple[Any, str]] = {
    "ref of a list": (node("torch.exp", {"ref": []}), "a ref must be the name of an earlier node"),
    "ref of a map": (node("torch.exp", {"ref": {}}), "not a dict"),
    "unknown ref": (node("torch.exp", {"ref": "later"}), "'later', which is no earlier node"),
    "ref to itself": (node("torch.exp", {"ref": "x"}), "'x', which is no earlier node"),
    "attribute of a list": (node("getattr", LOGPROBS, [[]]), "of a node may be read"),
    "attribute alone": (node("getattr"), "of a node may be read"),
    "slice": (node("torch.exp", {"slice": 1}), "kind 'slice' holding a int"),
    "float": (node("torch.exp", {"float": []}), "kind 'float' holding a list"),
    "dtype": (node("torch.exp", {"dtype": ["float32"]}), "kind 'dtype' holding a list"),
    "two keys": (node("torch.exp", {"ref": "a", "b": 1}), "type a dict is not understood"),
    "keyword": (node("torch.exp", LOGPROBS, out=LOGPROBS), "keyword 'out' is not allowed"),
    "operation": (node("torch.load", "x"), "'torch.load' is not an allowed operation"),
    "op": (node("exp", op="call_module"), "op 'call_module' is not allowed"),
    "op of a list": ({**node("torch.exp"), "op": []}, "its 'op' is missing or of the wrong type"),
    "no args": ({"op": "call_function", "name": "x"}, "its 'target' is missing"),
    "stray field": ({**node("torch.exp"), "meta": 1}, "the field 'meta' is not known"),
    "whole number": (node("torch.exp", 2**60), "a whole number lies beyond"),
    "deep": (node("torch.exp", [[[[[[[[[[1]]]]]]]]]]), "nested deeper than 8"),
    "long": (node("torch.exp", [0] * 300), "a list of 300 is over the limit of 256"),
    "nuclear": (node("torch.norm", LOGPROBS, "nuc"), "p 'nuc' of norm is not allowed"),
    "nuclear by name": (
        node("norm", LOGPROBS, p="nuc", op="call_method"),
        "the work of a matrix norm is not bounded by its cells",
    ),
    "doubled": (node("torch.exp", name="logprobs"), "another node has this name"),
    "not an object": (["torch.exp"], "a node must be an object, not a list"),
}


@pytest.mark.parametrize("kind", list(MALFORMED))
def test_what_is_wrong_is_said_of_the_node(kind: str) -> None:
    raw, message = MALFORMED[kind]
    with pytest.raises(UserError) as caught:
        Graph((("logprobs", 1),), graph(raw), 40)
    assert str(caught.value).startswith("graph: nodes[1]")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "output",
    [[], [1], [{"ref": []}], [{"tuple": [LOGPROBS]}], [{"tuple": [LOGPROBS, {"dict": []}]}],
     [{"tuple": [1, {"dict": {}}]}], [{"tuple": [LOGPROBS, {"dict": {"loss:sum": LOGPROBS}}]}]],
)  # fmt: skip
def test_an_output_that_is_none_is_said_so(output: list[Any]) -> None:
    nodes = [*graph()[:-1], node("output", *output, op="output", name="output")]
    with pytest.raises(UserError, match=r"graph: nodes\[1\] 'output'"):
        Graph((("logprobs", 1),), nodes, 40)


def test_a_long_name_is_shortened_in_the_message() -> None:
    with pytest.raises(UserError) as caught:
        Graph((("logprobs", 1),), graph(node("y" * 9000, name="z" * 9000)), 40)
    assert len(str(caught.value)) < 300
