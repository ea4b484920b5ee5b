"""One training example: what the model reads and what its loss needs.

Turns lists, numpy arrays and torch tensors into `TensorData` once, at construction. Knows the names
a plain list may have; knows nothing of how any loss uses them.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinkex.types.model_input import ModelInput
from tinkex.types.provenance import (
    PromptProvenanceSpan,
    ProvenanceSpans,
    SampledProvenanceSpan,
    check_tiling,
)
from tinkex.types.shortened import shown_with
from tinkex.types.strictness import exported, twin
from tinkex.types.tensor_data import TensorData, TensorDtype, dense_tensor

if TYPE_CHECKING:
    import torch

LossFnType: TypeAlias = Literal[
    "cross_entropy",
    "importance_sampling",
    "ppo",
    "cispo",
    "dro",
    "gspo",
    "stable_reinforce",
    "custom",
]
LossFnInput: TypeAlias = "TensorData | NDArray[Any] | torch.Tensor | list[Any]"
"""What a loss input may be given as; a list's numbers get the dtype that belongs to its name."""

LossFnInputs: TypeAlias = dict[str, TensorData]
LossFnOutput: TypeAlias = dict[str, TensorData]

LIST_DTYPES: dict[str, TensorDtype] = {
    "target_tokens": "int64",
    "weights": "float32",
    "advantages": "float32",
    "logprobs": "float32",
    "clip_low_threshold": "float32",
    "clip_high_threshold": "float32",
    "sequence_ratio_mask": "float32",
}
"""The inputs that may be given as plain lists, and what they become."""

_SPARSE_INPUTS = ("target_tokens", "weights")


@exported
@dataclass(frozen=True, init=False)
class Datum:
    """A sequence and its loss inputs. Inputs may be lists, arrays or tensors; they are kept as
    `TensorData`. Span lists come as a pair: see `with_provenance`."""

    model_input: ModelInput
    loss_fn_inputs: LossFnInputs = field(default_factory=dict)
    model_input_spans: ProvenanceSpans | None = None
    loss_fn_input_spans: ProvenanceSpans | None = None

    # Written out, because what may be given is wider than what is kept.
    def __init__(
        self,
        model_input: ModelInput,
        loss_fn_inputs: Mapping[str, LossFnInput] = MappingProxyType({}),
        model_input_spans: ProvenanceSpans | None = None,
        loss_fn_input_spans: ProvenanceSpans | None = None,
    ) -> None:
        model_input = _checked_kind(model_input)
        if (model_input_spans is None) != (loss_fn_input_spans is None):
            raise AssertionError("spans come in pairs: set both span lists or neither")
        self.__dict__.update(
            model_input=model_input,
            loss_fn_inputs={name: _tensor(name, value) for name, value in loss_fn_inputs.items()},
            model_input_spans=_spans(model_input_spans),
            loss_fn_input_spans=_spans(loss_fn_input_spans),
        )

    def with_provenance(
        self, model_input: ProvenanceSpans, loss_fn_inputs: ProvenanceSpans
    ) -> "Datum":
        """A copy that says where each position came from; ValueError unless all are covered."""
        check_tiling("model_input", model_input, self.model_input.length)
        targets = self.loss_fn_inputs.get("target_tokens")
        if targets is not None and targets.shape is not None and len(targets.shape) == 1:
            check_tiling("loss_fn_inputs", loss_fn_inputs, targets.shape[0])
        return replace(self, model_input_spans=model_input, loss_fn_input_spans=loss_fn_inputs)


def _checked_kind(model_input: object) -> ModelInput:
    found = twin(model_input, ModelInput)
    if not isinstance(found, ModelInput):
        raise TypeError(f"model_input must be a ModelInput, got {type(model_input).__name__}")
    return found


def _spans(given: ProvenanceSpans | None) -> ProvenanceSpans | None:
    if given is None:
        return None
    return [twin(span, PromptProvenanceSpan, SampledProvenanceSpan) for span in given]


def _tensor(name: str, value: Any) -> TensorData:
    try:
        return _converted(name, value)
    except ValueError as error:
        raise ValueError(f"loss_fn_inputs[{name!r}]: {error}") from error


def _converted(name: str, value: Any) -> TensorData:
    value = twin(value, TensorData)
    if isinstance(value, TensorData):
        return value
    if isinstance(value, np.ndarray):
        return TensorData.from_numpy(value)
    if _is_torch(value):
        sparse = value.ndim == 2 and name in _SPARSE_INPUTS
        return TensorData.from_torch_sparse(value) if sparse else TensorData.from_torch(value)
    if isinstance(value, list):
        return _from_list(name, value)
    kind = type(value).__name__
    raise TypeError(
        f"loss_fn_inputs[{name!r}] must be a TensorData, a numpy array, a torch tensor or a list, "
        f"got {kind}"
    )


def _from_list(name: str, value: list[Any]) -> TensorData:
    if name not in LIST_DTYPES:
        raise KeyError(
            f"loss_fn_inputs[{name!r}] is a list, and the dtype of {name!r} is not known: "
            f"wrap it in TensorData, or use one of {sorted(LIST_DTYPES)}"
        )
    return dense_tensor(value, LIST_DTYPES[name])


def _is_torch(value: object) -> bool:
    """Nothing can be a tensor before torch was imported, so asking never imports it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


@dataclass(frozen=True)
class ForwardBackwardInput:
    """The data of a forward or backward pass, and the loss."""

    data: list[Datum]
    loss_fn: LossFnType
    loss_fn_config: Mapping[str, float | str] | None = None


@dataclass(frozen=True)
class ForwardBackwardRequest:
    """A forward and backward pass, as it is sent."""

    forward_backward_input: ForwardBackwardInput
    model_id: str
    seq_id: int | None = None


@dataclass(frozen=True)
class ForwardRequest:
    """A forward pass without gradients, as it is sent."""

    forward_input: ForwardBackwardInput
    model_id: str
    seq_id: int | None = None


@exported
@dataclass(frozen=True)
class ForwardBackwardOutput:
    """What a loss returned: named tensors per datum, and metrics named `name:reduction`.

    The loss itself is `metrics["loss:sum"]`.
    """

    loss_fn_output_type: str
    loss_fn_outputs: list[LossFnOutput]
    metrics: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        facts = {"metrics": repr(self.metrics)}
        return shown_with("ForwardBackwardOutput", facts, loss_fn_outputs=self.loss_fn_outputs)
