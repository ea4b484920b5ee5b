"""Turning a per-datum loss into a graph: traced with torch.fx, checked, and written for the wire.

Only what a server can run safely is let through: torch, math and operator functions, tensor
methods that stay on tensors, no modules, no captured tensors, no branching on values.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from tinkex.client.training.custom_loss import PerDatumLossFn, _torch
from tinkex.types import (
    CustomLossGraph,
    CustomLossInput,
    CustomLossInputRank,
    CustomLossNode,
)
from tinkex.wire.limits import MAX_CUSTOM_LOSS_INPUTS

_PARAMETER = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")
_ALLOWED_MODULES = frozenset({"torch", "math", "operator", "_operator"})
_FORBIDDEN_METHODS = frozenset({"backward", "item", "numpy", "tolist"})


def declared_inputs(
    fn: PerDatumLossFn, input_ranks: Mapping[str, CustomLossInputRank]
) -> tuple[CustomLossInput, ...]:
    """The inputs of ``fn`` with their ranks, ``logprobs`` first; ValueError if they do not fit."""
    parameters = list(inspect.signature(fn).parameters.values())
    names = [item.name for item in parameters]
    if not names or names[0] != "logprobs":
        raise ValueError("fn: its first parameter must be named logprobs")
    if len(names) > MAX_CUSTOM_LOSS_INPUTS:
        raise ValueError(f"fn: at most {MAX_CUSTOM_LOSS_INPUTS} parameters, got {len(names)}")
    for item in parameters:
        _check_parameter(item)
    if set(input_ranks) != set(names):
        raise ValueError(
            f"input_ranks: must name exactly the parameters {names}, got {sorted(input_ranks)}"
        )
    if input_ranks["logprobs"] == 0:
        raise ValueError("input_ranks['logprobs']: must be 1 or 2, got 0")
    return tuple(CustomLossInput(name=name, rank=input_ranks[name]) for name in names)


def _check_parameter(item: inspect.Parameter) -> None:
    if not _PARAMETER.fullmatch(item.name):
        raise ValueError(f"fn: parameter {item.name!r} must be lower case letters, digits and _")
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    if item.kind not in plain or item.default is not inspect.Parameter.empty:
        raise ValueError(
            f"fn: parameter {item.name!r} must be a plain one: not variadic, not keyword-only, "
            "without a default"
        )


def trace(fn: PerDatumLossFn) -> Any:
    """The graph of ``fn`` as a ``torch.fx.GraphModule``; ValueError when it cannot be one."""
    torch = _torch()
    from torch import fx

    try:
        graph = fx.Tracer().trace(fn)
    except Exception as error:  # whatever the user's code does with a proxy
        raise ValueError(
            f"fn: cannot be traced ({type(error).__name__}: {error}). "
            "Use torch operations only, and torch.where instead of branching on values."
        ) from error
    for node in graph.nodes:
        _check_node(node)
    return fx.GraphModule(torch.nn.Module(), graph)


def _check_node(node: Any) -> None:
    if node.op == "call_function":
        _check_function(node.target)
    elif node.op == "call_method":
        _check_method(node.target)
    elif node.op in ("call_module", "get_attr"):
        raise ValueError(
            f"fn: uses {node.target!r} from outside (a module or a captured tensor); "
            "pass tensors as inputs instead"
        )
    elif node.op == "output":
        _check_output(node.args[0])


def _check_function(target: Callable[..., Any]) -> None:
    if target is getattr:
        return
    module = (getattr(target, "__module__", None) or "torch").partition(".")[0]
    if module not in _ALLOWED_MODULES:
        raise ValueError(
            f"fn: calls {module}.{getattr(target, '__name__', target)}; "
            "only torch, math and operator functions can be traced"
        )


def _check_method(name: str) -> None:
    import torch

    if name in _FORBIDDEN_METHODS or not hasattr(torch.Tensor, name):
        raise ValueError(f"fn: calls the method {name!r}, which a traced loss cannot use")


def _check_output(returned: Any) -> None:
    from torch import fx

    if not isinstance(returned, tuple) or len(returned) != 2:
        raise ValueError("fn: must return (loss, metrics)")
    loss, metrics = returned
    if not isinstance(loss, fx.Node):
        raise ValueError("fn: the loss does not depend on the inputs")
    if not isinstance(metrics, dict):
        raise ValueError("fn: the metrics must be a dict")
    for name, value in metrics.items():
        if not isinstance(name, str) or not _METRIC.fullmatch(name):
            raise ValueError(
                f"fn: metric {name!r} must look like custom/<name>:sum or custom/<name>:mean"
            )
        if not isinstance(value, fx.Node):
            raise ValueError(f"fn: metric {name!r} does not depend on the inputs")


# ---- the wire form


def graph_for_wire(module: Any) -> CustomLossGraph:
    """The graph as nodes with JSON arguments."""
    nodes = [
        CustomLossNode(
            op=node.op,
            name=node.name,
            target=_target_name(node),
            args=[_argument(item) for item in node.args],
            kwargs={key: _argument(item) for key, item in node.kwargs.items()},
        )
        for node in module.graph.nodes
    ]
    return CustomLossGraph(nodes=nodes)


def _target_name(node: Any) -> str:
    target = node.target
    if isinstance(target, str):
        return target
    if target is getattr:
        return "getattr"
    module = (getattr(target, "__module__", None) or "torch").replace("_operator", "operator")
    return f"{module}.{target.__name__}"


def _argument(value: Any) -> Any:
    import torch
    from torch import fx

    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case fx.Node():
            return {"ref": value.name}
        case list():
            return [_argument(item) for item in value]
        case tuple():
            return {"tuple": [_argument(item) for item in value]}
        case dict():
            return {"dict": {key: _argument(item) for key, item in value.items()}}
        case slice():
            return {"slice": [_argument(part) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    for kind, name in (
        (torch.dtype, "dtype"),
        (torch.device, "device"),
        (torch.layout, "layout"),
        (torch.memory_format, "memory_format"),
    ):
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    raise ValueError(f"fn: a {type(value).__name__} argument cannot be uploaded")
