"""Losses uploaded as traced graphs: evaluated on logprobs with autograd, operation by operation.

Values are tensors, numbers, and tuples of them. Each operation is first tried on shapes alone, so
one that would fill the memory is refused before it runs, and the cells a loss works through are
counted. What goes wrong in an uploaded loss is its sender's error and touches nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.custom_graph import MAX_ITEMS, Graph, Node, Ref, check_number
from tinkex.engine.custom_ops import FUNCTIONS, Here, read_attribute
from tinkex.engine.errors import UserError
from tinkex.engine.losses.evaluation import BoundSlopes
from tinkex.engine.losses.inputs import CheckedDatum, Wanted

MAX_CELLS = 1 << 22
"""Of one value."""

MAX_WORK = 1 << 26
"""Cells of all values of one datum."""


def evaluate(
    graph: Graph, values: Mapping[str, Tensor], device: torch.device
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the metrics of one datum; `UserError` for whatever goes wrong."""
    known: dict[str, Any] = dict(values)
    work = 0
    for node in graph.nodes:
        try:
            known[node.name] = value = _evaluate(node, known, device)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"custom loss: node {node.name!r} failed: {type(error).__name__}: {error}"
            ) from None
        work += sum(item.numel() for item in _flatten(value) if isinstance(item, Tensor))
        if work > MAX_WORK:
            raise UserError(f"custom loss: more than {MAX_WORK} cells in one datum, the limit")
    metrics = {key: _scalar(key, known[ref.name]) for key, ref in graph.metrics.items()}
    return _scalar("the loss", known[graph.loss.name]), metrics


def _evaluate(node: Node, known: Mapping[str, Any], device: torch.device) -> Any:
    args = _fill(list(node.args), known, device)
    kwargs = {key: _fill(value, known, device) for key, value in node.kwargs.items()}
    if node.operation is read_attribute:
        return read_attribute(*args)
    scalars = not any(isinstance(item, Tensor) for item in _flatten([args, list(kwargs.values())]))
    if node.operation in _ON_NUMBERS:
        _check_operands(node, args)
        if scalars and node.operation is FUNCTIONS["operator.pow"]:
            return math.pow(*args)
    if not scalars or node.operation not in _ON_NUMBERS:
        _try_shapes(node, args, kwargs)
    return _check_value(node.operation(*args, **kwargs))


_ON_NUMBERS = {FUNCTIONS[name] for name in FUNCTIONS if name.startswith("operator.")}


def _check_operands(node: Node, args: list[Any]) -> None:
    """Operators work on tensors and numbers; only indexing may take a tuple apart."""
    if node.operation is FUNCTIONS["operator.getitem"]:
        if not isinstance(args[0], (Tensor, tuple)):
            raise UserError(f"custom loss: node {node.name!r} indexes neither tensor nor tuple")
    elif not all(isinstance(item, (Tensor, int, float)) for item in args):
        raise UserError(f"custom loss: node {node.name!r} takes tensors and numbers only")


def _try_shapes(node: Node, args: list[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a result that is too large, before it exists."""
    if node.operation is FUNCTIONS["operator.getitem"] and _picks_by_mask(args[1]):
        return
    shapes = [_to_meta(item) for item in args]
    on_meta = {key: _to_meta(value) for key, value in kwargs.items()}
    if "device" in on_meta or node.operation in _FACTORIES:
        on_meta["device"] = torch.device("meta")
    with torch.no_grad():
        _check_value(node.operation(*shapes, **on_meta))


_FACTORIES = {FUNCTIONS[f"torch.{name}"] for name in ("zeros", "ones", "full", "arange")}


def _picks_by_mask(index: Any) -> bool:
    """Whether one boolean tensor selects: the result's size is unknown, but never larger."""
    tensors = [item for item in _flatten(index) if isinstance(item, Tensor)]
    masks = [item for item in tensors if item.dtype == torch.bool]
    if masks and len(tensors) > 1:
        raise UserError("custom loss: a boolean mask must be the only tensor of an index")
    return bool(masks)


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
    if isinstance(value, Ref):
        return _fill(known[value.name], known, device)
    if isinstance(value, Here):
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
        return check_number(value)
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


class CustomEvaluation:
    """A custom loss in one call: per datum, summed."""

    whole_sequence = True

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        ranks = {n: rank for n, rank in graph.inputs if n not in ("logprobs", "target_tokens")}
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
            loss, metrics = evaluate(self._graph, self._values(datum, torch.from_numpy(own)), _HOST)
            totals["loss:sum"] += float(loss)
            for key, value in metrics.items():
                totals[key] = totals.get(key, 0.0) + float(value)
        return {k: v / len(data) if k.endswith(":mean") else v for k, v in totals.items()}

    def _slope(self, datum: CheckedDatum, logprobs: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = logprobs.detach().clone().requires_grad_()
            loss, _ = evaluate(self._graph, self._values(datum, leaf), leaf.device)
            if not loss.requires_grad:
                return torch.zeros_like(logprobs)
            (slope,) = torch.autograd.grad(loss, leaf, allow_unused=True)
        return torch.zeros_like(logprobs) if slope is None else slope

    def _values(self, datum: CheckedDatum, logprobs: Tensor) -> dict[str, Tensor]:
        ranks = dict(self._graph.inputs)
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
