"""Losses the user writes: run here on the logprobs of a forward pass, or uploaded as a graph.

The loss of a batch is any function of the logprobs; its gradient with respect to them becomes the
weights of a cross-entropy backward pass, which by the chain rule gives the model the same gradient.
Torch is imported when a loss is used, never before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tinkex.types import CustomLossInput, Datum, ForwardBackwardOutput, TensorData
from tinkex.types.tensor_data import sparse_if_smaller

if TYPE_CHECKING:
    import torch

CustomLossFnV1 = Callable[
    [list[Datum], "list[torch.Tensor]"], "tuple[torch.Tensor, dict[str, float]]"
]
"""A loss over a batch: (data, one logprobs tensor per datum) -> (scalar loss, metrics)."""

LOSS_METRIC = "loss:sum"
SURROGATE_METRIC = "surrogate_loss:sum"


class PerDatumLossFn(Protocol):
    """A loss over one datum: (logprobs, *inputs) -> (scalar loss, {metric: scalar})."""

    def __call__(
        self, logprobs: torch.Tensor, /, *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]: ...


@dataclass(frozen=True)
class LossHandle:
    """A traced loss, made by ``ServiceClient.create_custom_loss``; valid in its session only.

    ``loss_id`` is set when the server runs the loss; otherwise it runs here.
    """

    name: str
    inputs: tuple[CustomLossInput, ...]
    session_id: str
    graph: torch.fx.GraphModule = field(repr=False, compare=False)
    loss_id: str | None = None

    @property
    def key(self) -> str:
        """The same for the same code with the same inputs."""
        declared = ",".join(f"{item.name}:{item.rank}" for item in self.inputs)
        return hashlib.sha256(f"{self.graph.code}\n{declared}".encode()).hexdigest()

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs that every datum must bring, in order."""
        return tuple(item.name for item in self.inputs)

    def check_usable(self, data: Sequence[Datum], session_id: str) -> None:
        """ValueError unless it belongs to this session and every datum has its inputs."""
        if self.session_id != session_id:
            raise ValueError(
                f"loss_fn: this LossHandle belongs to session {self.session_id}, "
                f"not to {session_id}; create the loss again with this ServiceClient"
            )
        for index, datum in enumerate(data):
            for declared in self.inputs:
                # The logprobs will have the shape of the targets.
                name = "target_tokens" if declared.name == "logprobs" else declared.name
                _check_rank(index, datum, name, declared.rank)

    def run(
        self, data: list[Datum], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of a batch, computed here: per-datum losses are summed."""
        losses: list[torch.Tensor] = []
        metrics: dict[str, float] = {}
        for datum, values in zip(data, logprobs, strict=True):
            inputs = [datum.loss_fn_inputs[name].to_torch() for name in self.input_names[1:]]
            loss, reported = self.graph(values, *inputs)
            losses.append(loss)
            for name, value in reported.items():
                share = len(data) if name.endswith(":mean") else 1
                metrics[name] = metrics.get(name, 0.0) + _number(value) / share
        return sum(losses[1:], losses[0]), metrics


class CustomLossStep:
    """One ``forward_backward_custom``: forward data, then backward data, then the result."""

    def __init__(self, data: list[Datum], function: CustomLossFnV1) -> None:
        self._torch = _torch()
        self._data = data
        self._function = function
        self._loss = 0.0
        self._metrics: dict[str, float] = {}
        self.forward_data = [_forward_datum(index, datum) for index, datum in enumerate(data)]

    def backward_data(self, forward: ForwardBackwardOutput) -> list[Datum]:
        """Call the user's function and turn its gradient into cross-entropy weights."""
        leaves = [self._leaf(index, forward) for index in range(len(self._data))]
        loss, metrics = self._call(leaves)
        loss.backward()
        self._loss = _number(loss)
        self._metrics = {name: _number(value) for name, value in metrics.items()}
        return [self._backward_datum(index, leaf.grad) for index, leaf in enumerate(leaves)]

    def finish(self, result: ForwardBackwardOutput) -> ForwardBackwardOutput:
        """The backward pass's result with the user's loss and metrics in it."""
        metrics = dict(result.metrics)
        if LOSS_METRIC in metrics:
            metrics[SURROGATE_METRIC] = metrics.pop(LOSS_METRIC)
        return ForwardBackwardOutput(
            loss_fn_output_type=result.loss_fn_output_type,
            loss_fn_outputs=result.loss_fn_outputs,
            metrics={**metrics, **self._metrics, LOSS_METRIC: self._loss},
        )

    def _leaf(self, index: int, forward: ForwardBackwardOutput) -> torch.Tensor:
        try:
            output = forward.loss_fn_outputs[index]["logprobs"]
        except (IndexError, KeyError):
            raise ValueError(
                f"The server returned no logprobs for data[{index}]; "
                "custom losses need them for every datum."
            ) from None
        return output.to_torch().detach().clone().requires_grad_(True)

    def _call(self, leaves: list[torch.Tensor]) -> tuple[torch.Tensor, Mapping[str, Any]]:
        returned = self._function(self._data, leaves)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError("loss_fn: must return (loss, metrics)")
        loss, metrics = returned
        if not isinstance(loss, self._torch.Tensor) or loss.numel() != 1:
            raise TypeError("loss_fn: the loss must be a tensor with one element")
        if not loss.requires_grad:
            raise ValueError("loss_fn: the loss does not depend on the logprobs it was given")
        if not bool(self._torch.isfinite(loss)):
            raise ValueError(f"loss_fn: the loss is {_number(loss)}; nothing was sent")
        return loss, metrics or {}

    def _backward_datum(self, index: int, gradient: torch.Tensor | None) -> Datum:
        if gradient is None:
            raise ValueError(
                f"loss_fn: the loss does not use the logprobs of data[{index}], "
                "so they have no gradient; multiply them by zero if that is meant"
            )
        if not bool(self._torch.isfinite(gradient).all()):
            raise ValueError(f"loss_fn: the gradient for data[{index}] is not finite")
        datum = self._data[index]
        return Datum(
            model_input=datum.model_input,
            loss_fn_inputs={
                "target_tokens": datum.loss_fn_inputs["target_tokens"],
                "weights": -gradient,
            },
            model_input_spans=datum.model_input_spans,
            loss_fn_input_spans=datum.loss_fn_input_spans,
        )


def custom_step(data: list[Datum], loss_fn: CustomLossFnV1 | LossHandle) -> CustomLossStep:
    """A step that runs ``loss_fn`` in this process."""
    if isinstance(loss_fn, LossHandle):
        return CustomLossStep(data, loss_fn.run)
    if not callable(loss_fn):
        raise TypeError(
            f"loss_fn: expected a function or a LossHandle, got {type(loss_fn).__name__}"
        )
    return CustomLossStep(data, loss_fn)


def _forward_datum(index: int, datum: Datum) -> Datum:
    targets = datum.loss_fn_inputs.get("target_tokens")
    if targets is None:
        raise ValueError(
            f"data[{index}].loss_fn_inputs: custom losses need target_tokens in every datum"
        )
    weights = datum.loss_fn_inputs.get("weights")
    return Datum(
        model_input=datum.model_input,
        loss_fn_inputs={
            "target_tokens": targets,
            "weights": _zeros_like(targets) if weights is None else weights,
        },
        model_input_spans=datum.model_input_spans,
        loss_fn_input_spans=datum.loss_fn_input_spans,
    )


def _zeros_like(targets: TensorData) -> TensorData:
    shape = targets.shape if targets.shape is not None else [len(targets.data)]
    return sparse_if_smaller(np.zeros(shape, dtype=np.float32))


def _check_rank(index: int, datum: Datum, name: str, rank: int) -> None:
    tensor = datum.loss_fn_inputs.get(name)
    if tensor is None:
        raise ValueError(f"data[{index}].loss_fn_inputs: the loss needs {name!r}")
    found = 1 if tensor.shape is None else len(tensor.shape)
    if found != rank:
        raise ValueError(
            f"data[{index}].loss_fn_inputs[{name!r}]: the loss declared rank {rank}, got {found}"
        )


def _number(value: Any) -> float:
    """A metric as a plain number; tensors may still be part of a graph."""
    return float(value.detach() if hasattr(value, "detach") else value)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError("custom losses need torch: pip install torch") from error
    return torch
