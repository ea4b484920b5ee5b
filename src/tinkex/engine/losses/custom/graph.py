"""A traced loss as it is uploaded: read, and checked against the list of allowed operations.

A graph is data. Its nodes name operations, which are looked up in `operations`, never by attribute.
Nothing runs here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinkex.engine.errors import UserError
from tinkex.engine.losses.custom.arguments import MAX_ITEMS, Ref, Wrong, decode, kind_of, shown
from tinkex.engine.losses.custom.operations import (
    ATTRIBUTES,
    FUNCTIONS,
    KEYWORDS,
    METHODS,
    Here,
    Operation,
    read_attribute,
)

MAX_INPUTS = 16

_INPUT_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. Its arguments are plain values, with `Ref` and `Here` in them."""

    name: str
    target: str
    operation: Operation
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Graph:
    """A checked graph. `inputs` are (name, rank), `logprobs` first; `nodes` in order."""

    def __init__(
        self,
        inputs: Sequence[tuple[str, int]],
        graph: Sequence[Mapping[str, object]],
        max_nodes: int,
    ) -> None:
        self.inputs = _check_inputs(inputs)
        if len(graph) > max_nodes:
            raise UserError(f"graph: {len(graph)} nodes are over the limit of {max_nodes}")
        self.nodes: list[Node] = []
        self.metrics: dict[str, Ref] = {}
        loss: Ref | None = None
        known: set[str] = set()
        for index, raw in enumerate(graph):
            if loss is not None:
                raise UserError(f"graph: nodes[{index}] follows the output, which must be the last")
            loss = self._read_named(index, raw, known)
        if loss is None:
            raise UserError("graph: there is no output node")
        self.loss = loss

    def _read_named(self, index: int, raw: Any, known: set[str]) -> Ref | None:
        try:
            return self._read(_Raw(raw), known)
        except Wrong as wrong:
            name = raw.get("name") if isinstance(raw, Mapping) else None
            where = f"nodes[{index}]" + (f" {shown(name)}" if isinstance(name, str) else "")
            raise UserError(f"graph: {where}: {wrong}") from None

    def _read(self, raw: _Raw, known: set[str]) -> Ref | None:
        """Take one node in; returns the loss if it is the output."""
        if raw.name in known:
            raise Wrong("another node has this name")
        if raw.op == "placeholder":
            if raw.target not in dict(self.inputs) or raw.name != raw.target:
                raise Wrong(f"placeholder {shown(raw.target)} is not a declared input")
        elif raw.op == "output":
            return self._read_output(raw, known)
        else:
            self.nodes.append(_check_call(raw, known))
        known.add(raw.name)
        return None

    def _read_output(self, raw: _Raw, known: set[str]) -> Ref:
        args = decode(raw.args, known, 0)
        pair = args[0] if len(args) == 1 else None
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], Ref):
            raise Wrong("the output must be (loss, {metric: value})")
        if not isinstance(pair[1], dict) or len(pair[1]) > MAX_ITEMS:
            raise Wrong(f"the metrics must be a map of at most {MAX_ITEMS} names")
        for key, value in pair[1].items():
            if not _METRIC.fullmatch(key) or not isinstance(value, Ref):
                raise Wrong(f"metric {shown(key)} must be custom/<name>:sum or :mean of a node")
        self.metrics = pair[1]
        return pair[0]


class _Raw:
    """A node as it was sent, its fields checked for type only."""

    def __init__(self, raw: Any) -> None:
        fields: dict[str, Any] = {
            "op": str,
            "name": str,
            "target": str,
            "args": (list, tuple),
            "kwargs": Mapping,
        }
        if not isinstance(raw, Mapping):
            raise Wrong(f"a node must be an object, not {kind_of(raw)}")
        for key, kind in fields.items():
            if not isinstance(raw.get(key), kind):
                raise Wrong(f"its {key!r} is missing or of the wrong type, {kind_of(raw.get(key))}")
        for key in raw.keys() - fields.keys():
            raise Wrong(f"the field {shown(key)} is not known; {', '.join(fields)} are")
        self.op, self.name, self.target = str(raw["op"]), str(raw["name"]), str(raw["target"])
        self.args: Any = raw["args"]
        self.kwargs: Any = raw["kwargs"]


def _check_inputs(inputs: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    names = [name for name, _ in inputs]
    if not names or names[0] != "logprobs" or len(names) > MAX_INPUTS:
        raise UserError(f"inputs: logprobs must come first, at most {MAX_INPUTS} in all")
    if len(set(names)) != len(names):
        raise UserError("inputs: a name is there twice")
    for name, rank in inputs:
        lowest = 1 if name == "logprobs" else 0
        if not _INPUT_NAME.fullmatch(name) or rank not in range(lowest, 3):
            raise UserError(
                f"inputs: {shown(name)} of rank {rank} is not allowed; ranks are 0 to 2"
            )
    return tuple((name, rank) for name, rank in inputs)


def _check_call(raw: _Raw, known: set[str]) -> Node:
    args = decode(raw.args, known, 0)
    kwargs = {key: decode(value, known, 1) for key, value in raw.kwargs.items()}
    for key in kwargs:
        if key not in KEYWORDS:
            raise Wrong(f"keyword {shown(key)} is not allowed")
    if raw.op == "call_function" and raw.target in ("getattr", "builtins.getattr"):
        return Node(raw.name, raw.target, read_attribute, _check_attribute(args), {})
    table = {"call_function": FUNCTIONS, "call_method": METHODS}.get(raw.op)
    if table is None:
        raise Wrong(f"op {shown(raw.op)} is not allowed")
    if raw.target not in table:
        raise Wrong(f"{shown(raw.target)} is not an allowed operation")
    operation = table[raw.target]
    _refuse_in_place(operation, args, kwargs)
    _refuse_matrix_norm(operation, args, kwargs)
    if "device" in kwargs:
        kwargs["device"] = Here()
    if raw.target == "to":
        # A name of a device is the other thing a text can be here; a loss cannot choose one.
        args = [Here() if isinstance(arg, str) else arg for arg in args]
    return Node(raw.name, raw.target, operation, tuple(args), kwargs)


def _refuse_in_place(operation: Operation, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Some functions take `inplace` by position too."""
    place = _place_of_inplace(operation)
    asked = kwargs.pop("inplace", False), *(args[place : place + 1] if place is not None else ())
    if any(value is not False for value in asked):
        raise Wrong("it would work in place; leave `inplace` out")


def _refuse_matrix_norm(operation: Operation, args: list[Any], kwargs: dict[str, Any]) -> None:
    """The nuclear one takes seconds for a million cells."""
    if operation not in (FUNCTIONS["torch.norm"], METHODS["norm"]):
        return
    for order in (kwargs.get("p"), *args[1:2]):
        if isinstance(order, str) and order != "fro":
            raise Wrong(
                f"p {shown(order)} of norm is not allowed: the work of a matrix norm is not "
                "bounded by its cells; use 'fro' or a number"
            )


def _place_of_inplace(operation: Operation) -> int | None:
    if not inspect.isfunction(operation):
        return None
    names = list(inspect.signature(operation).parameters)
    return names.index("inplace") if "inplace" in names else None


def _check_attribute(args: list[Any]) -> tuple[Any, ...]:
    name = args[1] if len(args) == 2 else None
    if not isinstance(name, str) or name not in ATTRIBUTES or not isinstance(args[0], Ref):
        raise Wrong(f"only {', '.join(sorted(ATTRIBUTES))} of a node may be read")
    return tuple(args)
