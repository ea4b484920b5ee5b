"""A traced loss as it is uploaded: read, and checked against the list of allowed operations.

A graph is data. Its nodes name operations, which are looked up in `custom_ops`, never by attribute.
Nothing runs here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinkex.engine.custom_ops import (
    ATTRIBUTES,
    DTYPES,
    FUNCTIONS,
    KEYWORDS,
    METHODS,
    Here,
    Operation,
    read_attribute,
)
from tinkex.engine.errors import UserError

MAX_INPUTS = 16
MAX_WHOLE = 1 << 53
MAX_ITEMS = 256
MAX_DEPTH = 8

_INPUT_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for an earlier node's value."""

    name: str


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. Its arguments are plain values, with `Ref` and `Here` in them."""

    name: str
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
        loss: Ref | None = None
        self.metrics: dict[str, Ref] = {}
        known: set[str] = set()
        for raw in graph:
            if loss is not None:
                raise UserError(f"graph: a node follows the output: {raw.get('name')!r}")
            loss = self._read(_Raw(raw), known)
        if loss is None:
            raise UserError("graph: there is no output node")
        self.loss = loss

    def _read(self, raw: _Raw, known: set[str]) -> Ref | None:
        """Take one node in; returns the loss if it is the output."""
        if raw.name in known:
            raise UserError(f"graph: two nodes are named {raw.name!r}")
        if raw.op == "placeholder":
            if raw.target not in dict(self.inputs) or raw.name != raw.target:
                raise UserError(f"graph: placeholder {raw.name!r} is not a declared input")
        elif raw.op == "output":
            return self._read_output(raw, known)
        else:
            self.nodes.append(_check_call(raw, known))
        known.add(raw.name)
        return None

    def _read_output(self, raw: _Raw, known: set[str]) -> Ref:
        args = _decode(raw.args, known, 0)
        pair = args[0] if len(args) == 1 else None
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], Ref):
            raise UserError("graph: the output must be (loss, {metric: value})")
        if not isinstance(pair[1], dict) or len(pair[1]) > MAX_ITEMS:
            raise UserError(f"graph: the metrics must be a map of at most {MAX_ITEMS} names")
        for key, value in pair[1].items():
            if not _METRIC.fullmatch(key) or not isinstance(value, Ref):
                raise UserError(
                    f"graph: metric {key!r} must be custom/<name>:sum or :mean of a node"
                )
        self.metrics = pair[1]
        return pair[0]


class _Raw:
    """A node as it was sent, its fields checked for type only."""

    def __init__(self, raw: Mapping[str, object]) -> None:
        fields: dict[str, Any] = {
            "op": str,
            "name": str,
            "target": str,
            "args": (list, tuple),
            "kwargs": Mapping,
        }
        for key, kind in fields.items():
            if not isinstance(raw.get(key), kind):
                raise UserError(f"graph: a node's {key!r} is missing or of the wrong type")
        if raw.keys() != fields.keys():
            raise UserError(
                f"graph: a node has the fields {sorted(raw)}; {sorted(fields)} are known"
            )
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
            raise UserError(f"inputs: {name!r} of rank {rank!r} is not allowed; ranks are 0 to 2")
    return tuple((name, rank) for name, rank in inputs)


def _check_call(raw: _Raw, known: set[str]) -> Node:
    args, kwargs = _decode(raw.args, known, 0), _decode({"dict": dict(raw.kwargs)}, known, 0)
    for key in kwargs:
        if key not in KEYWORDS:
            raise UserError(f"graph: node {raw.name!r}: keyword {key!r} is not allowed")
    if kwargs.pop("inplace", False):
        raise UserError(f"graph: node {raw.name!r} would work in place")
    if raw.op == "call_function" and raw.target in ("getattr", "builtins.getattr"):
        return Node(raw.name, read_attribute, _check_attribute(raw, args), {})
    table = {"call_function": FUNCTIONS, "call_method": METHODS}.get(raw.op)
    if table is None:
        raise UserError(f"graph: node {raw.name!r}: op {raw.op!r} is not allowed")
    if raw.target not in table:
        raise UserError(f"graph: node {raw.name!r}: {raw.target!r} is not an allowed operation")
    return Node(raw.name, table[raw.target], tuple(args), kwargs)


def _check_attribute(raw: _Raw, args: list[Any]) -> tuple[Any, ...]:
    if len(args) != 2 or not isinstance(args[0], Ref) or args[1] not in ATTRIBUTES:
        names = ", ".join(sorted(ATTRIBUTES))
        raise UserError(f"graph: node {raw.name!r}: only {names} of a tensor may be read")
    return tuple(args)


def _decode(value: Any, known: set[str], depth: int) -> Any:
    """A graph's argument as a template: numbers, texts, tuples, and `Ref` for other nodes."""
    if depth > MAX_DEPTH:
        raise UserError(f"graph: arguments are nested deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return check_number(value)
    if isinstance(value, (list, tuple)):
        if len(value) > MAX_ITEMS:
            raise UserError(f"graph: a list of {len(value)} is over the limit of {MAX_ITEMS}")
        return [_decode(item, known, depth + 1) for item in value]
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, inner),) = value.items()
        return _decode_special(kind, inner, known, depth)
    raise UserError(f"graph: an argument of type {type(value).__name__} is not understood")


def _decode_special(kind: Any, inner: Any, known: set[str], depth: int) -> Any:
    if kind == "ref":
        if inner not in known:
            raise UserError(f"graph: {inner!r} is used before it is there")
        return Ref(inner)
    if kind == "tuple" and isinstance(inner, (list, tuple)):
        return tuple(_decode(inner, known, depth + 1))
    if kind == "slice" and isinstance(inner, (list, tuple)) and len(inner) == 3:
        return slice(*_decode(inner, known, depth + 1))
    if kind == "dict" and isinstance(inner, Mapping):
        return {str(key): _decode(item, known, depth + 1) for key, item in inner.items()}
    if kind == "float" and inner in ("inf", "-inf", "nan"):
        return float(inner)
    if kind == "dtype" and str(inner).removeprefix("torch.") in DTYPES:
        return DTYPES[str(inner).removeprefix("torch.")]
    if kind == "ellipsis":
        return ...
    if kind == "device":
        return Here()
    if kind in ("layout", "memory_format"):
        return None
    raise UserError(f"graph: an argument of kind {kind!r} is not understood")


def check_number(value: int | float) -> int | float:
    if isinstance(value, int) and abs(value) > MAX_WHOLE:
        raise UserError(f"custom loss: a whole number beyond ±{MAX_WHOLE}")
    return value
