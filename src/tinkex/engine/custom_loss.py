"""Losses uploaded as traced graphs: rebuilt from a list of allowed operations, nothing else.

A graph is data. Its nodes name operations, which are looked up in `custom_ops`, never by
attribute; values are tensors, numbers, and tuples of them. Each operation is first tried on
shapes alone, so one that would fill the memory is refused before it runs. What goes wrong in an
uploaded loss is its sender's error and touches nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.custom_ops import ATTRIBUTES, DTYPES, FUNCTIONS, KEYWORDS, METHODS, Operation
from tinkex.engine.errors import UserError
from tinkex.engine.losses.evaluation import BoundSlopes
from tinkex.engine.losses.inputs import CheckedDatum, Wanted

MAX_INPUTS = 16
MAX_CELLS = 1 << 22
MAX_WHOLE = 1 << 53
MAX_ITEMS = 256
MAX_DEPTH = 8

_INPUT_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")


@dataclass(frozen=True, slots=True)
class _Ref:
    """Stands for an earlier node's value."""

    name: str


@dataclass(frozen=True, slots=True)
class _Device:
    """Stands for wherever the loss is evaluated: a trace cannot choose."""


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    operation: Operation
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class CustomLoss:
    """A checked graph. `inputs` are (name, rank), `logprobs` first."""

    def __init__(
        self,
        inputs: Sequence[tuple[str, int]],
        graph: Sequence[Mapping[str, object]],
        max_nodes: int,
    ) -> None:
        self.inputs = _check_inputs(inputs)
        if len(graph) > max_nodes:
            raise UserError(f"graph: {len(graph)} nodes are over the limit of {max_nodes}")
        self._nodes: list[_Node] = []
        self._loss: _Ref | None = None
        self._metrics: dict[str, _Ref] = {}
        known: set[str] = set()
        for raw in graph:
            self._read(_Raw(raw), known)
        if self._loss is None:
            raise UserError("graph: there is no output node")

    def __call__(
        self, values: Mapping[str, Tensor], device: torch.device
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and the metrics of one datum; `UserError` for whatever goes wrong."""
        known: dict[str, Any] = dict(values)
        for node in self._nodes:
            try:
                known[node.name] = _evaluate(node, known, device)
            except UserError:
                raise
            except Exception as error:
                raise UserError(
                    f"custom loss: node {node.name!r} failed: {type(error).__name__}: {error}"
                ) from None
        assert self._loss is not None
        metrics = {key: _scalar(key, known[ref.name]) for key, ref in self._metrics.items()}
        return _scalar("the loss", known[self._loss.name]), metrics

    def _read(self, raw: _Raw, known: set[str]) -> None:
        if self._loss is not None:
            raise UserError(f"graph: node {raw.name!r} follows the output")
        if raw.name in known:
            raise UserError(f"graph: two nodes are named {raw.name!r}")
        if raw.op == "placeholder":
            if raw.target not in dict(self.inputs) or raw.name != raw.target:
                raise UserError(f"graph: placeholder {raw.name!r} is not a declared input")
        elif raw.op == "output":
            self._read_output(raw, known)
        else:
            self._nodes.append(_check_call(raw, known))
        known.add(raw.name)

    def _read_output(self, raw: _Raw, known: set[str]) -> None:
        args = _decode(raw.args, known, 0)
        pair = args[0] if len(args) == 1 else None
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], _Ref):
            raise UserError("graph: the output must be (loss, {metric: value})")
        if not isinstance(pair[1], dict) or len(pair[1]) > MAX_ITEMS:
            raise UserError(f"graph: the metrics must be a map of at most {MAX_ITEMS} names")
        for key, value in pair[1].items():
            if not _METRIC.fullmatch(key) or not isinstance(value, _Ref):
                raise UserError(
                    f"graph: metric {key!r} must be custom/<name>:sum or :mean of a node"
                )
        self._loss, self._metrics = pair[0], pair[1]


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


def _check_call(raw: _Raw, known: set[str]) -> _Node:
    args, kwargs = _decode(raw.args, known, 0), _decode({"dict": dict(raw.kwargs)}, known, 0)
    for key in kwargs:
        if key not in KEYWORDS:
            raise UserError(f"graph: node {raw.name!r}: keyword {key!r} is not allowed")
    if kwargs.pop("inplace", False):
        raise UserError(f"graph: node {raw.name!r} would work in place")
    if raw.op == "call_function" and raw.target in ("getattr", "builtins.getattr"):
        return _Node(raw.name, _attribute, _check_attribute(raw, args), {})
    table = {"call_function": FUNCTIONS, "call_method": METHODS}.get(raw.op)
    if table is None:
        raise UserError(f"graph: node {raw.name!r}: op {raw.op!r} is not allowed")
    if raw.target not in table:
        raise UserError(f"graph: node {raw.name!r}: {raw.target!r} is not an allowed operation")
    return _Node(raw.name, table[raw.target], tuple(args), kwargs)


def _check_attribute(raw: _Raw, args: list[Any]) -> tuple[Any, ...]:
    if len(args) != 2 or not isinstance(args[0], _Ref) or args[1] not in ATTRIBUTES:
        names = ", ".join(sorted(ATTRIBUTES))
        raise UserError(f"graph: node {raw.name!r}: only {names} of a tensor may be read")
    return tuple(args)


def _attribute(value: Any, name: str) -> Any:
    if not isinstance(value, Tensor):
        raise UserError("custom loss: an attribute of something that is not a tensor")
    facts = {"shape": tuple(value.shape), "ndim": value.ndim, "dtype": value.dtype}
    return _Device() if name == "device" else facts[name]


# ---- arguments


def _decode(value: Any, known: set[str], depth: int) -> Any:
    """A graph's argument as a template: numbers, texts, tuples, and `_Ref` for other nodes."""
    if depth > MAX_DEPTH:
        raise UserError(f"graph: arguments are nested deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return _check_number(value)
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
        return _Ref(inner)
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
        return _Device()
    if kind in ("layout", "memory_format"):
        return None
    raise UserError(f"graph: an argument of kind {kind!r} is not understood")


def _check_number(value: int | float) -> int | float:
    if isinstance(value, int) and abs(value) > MAX_WHOLE:
        raise UserError(f"custom loss: a whole number beyond ±{MAX_WHOLE}")
    return value


# ---- evaluation


def _evaluate(node: _Node, known: Mapping[str, Any], device: torch.device) -> Any:
    args = _fill(list(node.args), known, device)
    kwargs = {key: _fill(value, known, device) for key, value in node.kwargs.items()}
    if node.operation is _attribute:
        return _attribute(*args)
    scalars = not any(isinstance(item, Tensor) for item in _flatten([args, list(kwargs.values())]))
    if node.operation in _ON_NUMBERS:
        _check_operands(node, args)
        if scalars and node.operation is FUNCTIONS["operator.pow"]:
            return math.pow(*args)
    if not scalars or node.operation not in _ON_NUMBERS:
        _try_shapes(node, args, kwargs)
    return _check_value(node.operation(*args, **kwargs))


_ON_NUMBERS = {FUNCTIONS[name] for name in FUNCTIONS if name.startswith("operator.")}


def _check_operands(node: _Node, args: list[Any]) -> None:
    """Operators work on tensors and numbers; only indexing may take a tuple apart."""
    if node.operation is FUNCTIONS["operator.getitem"]:
        if not isinstance(args[0], (Tensor, tuple)):
            raise UserError(f"custom loss: node {node.name!r} indexes neither tensor nor tuple")
    elif not all(isinstance(item, (Tensor, int, float)) for item in args):
        raise UserError(f"custom loss: node {node.name!r} takes tensors and numbers only")


def _try_shapes(node: _Node, args: list[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a result that is too large, before it exists."""
    mask = node.operation in (FUNCTIONS["operator.getitem"], *_MASKED)
    if mask and any(_is_mask(item) for item in _flatten(args[1:])):
        return
    shapes = [_to_meta(item) for item in args]
    on_meta = {key: _to_meta(value) for key, value in kwargs.items()}
    if "device" in on_meta or node.operation in _FACTORIES:
        on_meta["device"] = torch.device("meta")
    with torch.no_grad():
        _check_value(node.operation(*shapes, **on_meta))


_MASKED = (FUNCTIONS["torch.masked_select"], METHODS["masked_select"])
_FACTORIES = {FUNCTIONS[f"torch.{name}"] for name in ("zeros", "ones", "full", "arange")}


def _is_mask(item: Any) -> bool:
    return isinstance(item, Tensor) and item.dtype == torch.bool


def _to_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_to_meta(item) for item in value)
    return value


def _fill(value: Any, known: Mapping[str, Any], device: torch.device) -> Any:
    """The template with values in place of references."""
    if isinstance(value, _Ref):
        return _fill(known[value.name], known, device)
    if isinstance(value, _Device):
        return device
    if isinstance(value, slice):
        return slice(*(_fill(v, known, device) for v in (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple)):
        return type(value)(_fill(item, known, device) for item in value)
    return value


def _check_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.numel() > MAX_CELLS:
            raise UserError(f"custom loss: {value.numel()} cells are over the limit of {MAX_CELLS}")
        return value
    if isinstance(value, (bool, int, float)):
        return _check_number(value)
    if isinstance(value, (tuple, list)) and len(value) <= MAX_ITEMS:
        return tuple(_check_value(item) for item in value)
    raise UserError(f"custom loss: a result of type {type(value).__name__} is not allowed")


def _flatten(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flatten(item)]
    return [value]


def _scalar(what: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
        raise UserError(f"custom loss: {what} must be one number")
    return value.reshape(())


# ---- use


class CustomEvaluation:
    """A custom loss in one call: per datum, summed."""

    whole_sequence = True

    def __init__(self, loss: CustomLoss) -> None:
        self._loss = loss
        ranks = {n: rank for n, rank in loss.inputs if n not in ("logprobs", "target_tokens")}
        self.wanted = Wanted((), (), None, ranks)

    def bind(self, data: Sequence[CheckedDatum], device: torch.device) -> BoundSlopes:
        sizes = [len(datum.targets) for datum in data]

        def slopes(first: int, last: int, logprobs: Tensor) -> Tensor:
            parts = logprobs.split_with_sizes(sizes)
            return torch.cat([self._slope(d, p) for d, p in zip(data, parts, strict=True)])

        return slopes

    def metrics(
        self, data: Sequence[CheckedDatum], logprobs: Sequence[NDArray[np.float32]]
    ) -> dict[str, float]:
        totals: dict[str, float] = {"loss:sum": 0.0}
        for datum, own in zip(data, logprobs, strict=True):
            loss, metrics = self._loss(self._values(datum, torch.from_numpy(own)), _HOST)
            totals["loss:sum"] += float(loss)
            for key, value in metrics.items():
                totals[key] = totals.get(key, 0.0) + float(value)
        return {k: v / len(data) if k.endswith(":mean") else v for k, v in totals.items()}

    def _slope(self, datum: CheckedDatum, logprobs: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = logprobs.detach().clone().requires_grad_()
            loss, _ = self._loss(self._values(datum, leaf), leaf.device)
            if not loss.requires_grad:
                return torch.zeros_like(logprobs)
            (slope,) = torch.autograd.grad(loss, leaf, allow_unused=True)
        return torch.zeros_like(logprobs) if slope is None else slope

    def _values(self, datum: CheckedDatum, logprobs: Tensor) -> dict[str, Tensor]:
        ranks = dict(self._loss.inputs)
        if len(datum.shape) != ranks["logprobs"]:
            raise UserError(
                f"target_tokens has {len(datum.shape)} dimensions; the loss declared rank "
                f"{ranks['logprobs']} for logprobs"
            )
        found = {"logprobs": logprobs.reshape(datum.shape)}
        if "target_tokens" in ranks:
            targets = torch.from_numpy(datum.targets).to(logprobs.device)
            found["target_tokens"] = targets.reshape(datum.shape)
        for name, value in datum.extra.items():
            found[name] = torch.from_numpy(np.ascontiguousarray(value)).to(logprobs.device)
        return found


_HOST = torch.device("cpu")
