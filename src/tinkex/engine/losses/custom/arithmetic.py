"""A checked graph evaluated on tensors, node by node.

Values are tensors, numbers, and tuples of them. Each operation is first tried on shapes alone, so
one that would fill the memory is refused before it runs; the cells that are read and written are
counted against the call's allowance. Runs in a process of its own: see `child`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinkex.engine.errors import UserError
from tinkex.engine.losses.custom.arguments import MAX_ITEMS, MAX_WHOLE, Ref, is_small, shown
from tinkex.engine.losses.custom.graph import Graph, Node
from tinkex.engine.losses.custom.operations import FUNCTIONS, SLOW, Here, read_attribute

MAX_CELLS = 1 << 22
"""Of one value."""

MAX_KEPT = 1 << 26
"""Cells of all values of one datum: the gradient needs most of them again."""

NODE_WORK = 1 << 12
"""What starting an operation costs, in cells: many small ones are work too."""

SLOW_WORK = 16
"""How much more a cell costs that is sorted rather than added."""

_HERE = torch.device("cpu")


@dataclass(slots=True)
class Work:
    """What one call has done so far and may do, in cells read and written."""

    limit: int
    spent: int = 0

    def charge(self, cells: int) -> None:
        self.spent += cells
        if self.spent > self.limit:
            raise UserError(
                f"custom loss: more than {self.limit} cells read and written in one call, the "
                f"limit; use fewer or smaller operations, or send fewer datums at once"
            )


def evaluate(
    graph: Graph, values: Mapping[str, Tensor], work: Work, at: Callable[[int], None]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the metrics of one datum; `UserError` for whatever goes wrong.

    `at` is told the number of each node before it runs.
    """
    known: dict[str, Any] = dict(values)
    kept = 0
    for index, node in enumerate(graph.nodes):
        at(index)
        try:
            known[node.name] = value = _evaluate(node, known, work)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"custom loss: node {shown(node.name)} failed: {type(error).__name__}: {error}"
            ) from None
        kept += _cells(value)
        if kept > MAX_KEPT:
            raise UserError(f"custom loss: more than {MAX_KEPT} cells in one datum, the limit")
    metrics = {key: _scalar(key, known.get(ref.name)) for key, ref in graph.metrics.items()}
    return _scalar("the loss", known.get(graph.loss.name)), metrics


def _evaluate(node: Node, known: Mapping[str, Any], work: Work) -> Any:
    args = _fill(list(node.args), known)
    kwargs = {key: _fill(value, known) for key, value in node.kwargs.items()}
    if node.operation is read_attribute:
        work.charge(NODE_WORK)
        return read_attribute(*args)
    tensors = [v for v in _flatten([args, list(kwargs.values())]) if isinstance(v, Tensor)]
    if node.operation in _ON_NUMBERS:
        _check_operands(node, args)
        if not tensors and node.operation is FUNCTIONS["operator.pow"]:
            return math.pow(*args)
    made = 0
    if tensors or node.operation not in _ON_NUMBERS:
        made = _try_shapes(node, args, kwargs)
    weight = SLOW_WORK if node.operation in SLOW else 1
    work.charge(NODE_WORK + weight * (made + sum(tensor.numel() for tensor in tensors)))
    return _check_value(node.operation(*args, **kwargs))


_ON_NUMBERS = {FUNCTIONS[name] for name in FUNCTIONS if name.startswith("operator.")}


def _check_operands(node: Node, args: list[Any]) -> None:
    """Operators work on tensors and numbers; only indexing may take a tuple apart."""
    if node.operation is FUNCTIONS["operator.getitem"]:
        if len(args) != 2 or not isinstance(args[0], (Tensor, tuple)):
            raise UserError(f"custom loss: node {shown(node.name)} indexes no tensor and no tuple")
    elif not all(isinstance(item, (Tensor, int, float)) for item in args):
        raise UserError(f"custom loss: node {shown(node.name)} takes tensors and numbers only")


def _try_shapes(node: Node, args: list[Any], kwargs: Mapping[str, Any]) -> int:
    """The cells the result will have; one that is too large is refused before it exists."""
    if node.operation is FUNCTIONS["operator.getitem"] and _picks_by_mask(args[1]):
        return int(args[0].numel())
    shapes = [_to_meta(item) for item in args]
    on_meta = {key: _to_meta(value) for key, value in kwargs.items()}
    if "device" in on_meta or node.operation in _FACTORIES:
        on_meta["device"] = torch.device("meta")
    with torch.no_grad():
        return _cells(_check_value(node.operation(*shapes, **on_meta)))


_FACTORIES = {FUNCTIONS[f"torch.{name}"] for name in ("zeros", "ones", "full", "arange")}


def _picks_by_mask(index: Any) -> bool:
    """Whether one boolean tensor selects. How much is unknown then, but never more than there is:
    that holds only where nothing else in the index is a tensor or a list, which torch reads as one.
    """
    parts = index if isinstance(index, tuple) else (index,)
    masks = [part for part in parts if isinstance(part, Tensor) and part.dtype == torch.bool]
    others = [part for part in parts if isinstance(part, (Tensor, list, tuple))]
    if masks and len(others) > 1:
        raise UserError("custom loss: a boolean mask must be the only tensor or list of an index")
    return bool(masks)


def _to_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_to_meta(item) for item in value)
    return value


def _fill(value: Any, known: Mapping[str, Any]) -> Any:
    """The template with values in place of references."""
    if isinstance(value, Ref):
        if value.name not in known:
            raise UserError(f"custom loss: {shown(value.name)} is declared and was not given")
        return _fill(known[value.name], known)
    if isinstance(value, Here):
        return _HERE
    if isinstance(value, slice):
        return slice(*(_fill(v, known) for v in (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple)):
        return type(value)(_fill(item, known) for item in value)
    return value


def _check_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.numel() > MAX_CELLS:
            raise UserError(f"custom loss: {value.numel()} cells are over the limit of {MAX_CELLS}")
        return value
    if isinstance(value, (bool, int, float)):
        if not is_small(value):
            raise UserError(f"custom loss: a whole number lies beyond ±{MAX_WHOLE}")
        return value
    if isinstance(value, (tuple, list)) and len(value) <= MAX_ITEMS:
        return tuple(_check_value(item) for item in value)
    raise UserError(f"custom loss: a result of type {type(value).__name__} is not allowed")


def _cells(value: Any) -> int:
    return sum(item.numel() for item in _flatten(value) if isinstance(item, Tensor))


def _flatten(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flatten(item)]
    return [value]


def _scalar(what: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
        raise UserError(f"custom loss: {what} must be one number")
    return value.reshape(())
