"""Terms to add to a custom loss, off unless used.

A regularizer is a function of the batch and its logprobs that returns a name and a scalar tensor.
``regularized`` adds some to a loss and reports each of them as a metric::

    loss = regularized(my_loss, kl_to_reference(0.05), entropy_bonus(0.01))
    training.forward_backward_custom(data, loss)

All terms are means over the tokens whose weight is not zero (all tokens when there are no
weights), so coefficients do not depend on batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tinkex.client.training.custom_loss import CustomLossFnV1
from tinkex.types import Datum

if TYPE_CHECKING:
    import torch

Term = tuple[str, "torch.Tensor"]
Regularizer = Callable[[list[Datum], "list[torch.Tensor]"], "Term"]


def regularized(loss_fn: CustomLossFnV1, *regularizers: Regularizer) -> CustomLossFnV1:
    """The loss plus the terms; metric ``regularizer/<name>:sum`` is what each added."""
    if not regularizers:
        raise ValueError("regularizers: give at least one")

    def total(
        data: list[Datum], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        loss, metrics = loss_fn(data, logprobs)
        reported = dict(metrics)
        for regularizer in regularizers:
            name, term = regularizer(data, logprobs)
            loss = loss + term
            reported[f"regularizer/{name}:sum"] = float(term.detach())
        return loss, reported

    return total


def kl_to_reference(coefficient: float, reference: str = "reference_logprobs") -> Regularizer:
    """Keeps the model near a reference, given its logprobs as a loss input of each datum.

    The estimate of the divergence is ``exp(d) - d - 1`` with ``d = reference - logprobs``: never
    negative, and unbiased for tokens the model itself sampled.
    """
    _check(coefficient)

    def term(data: list[Datum], logprobs: list[torch.Tensor]) -> Term:
        parts = []
        for index, (datum, values) in enumerate(zip(data, logprobs, strict=True)):
            difference = _input(index, datum, reference) - values
            parts.append((difference.exp() - difference - 1.0)[_mask(datum, values)])
        return "kl_to_reference", coefficient * _mean(parts)

    return term


def l2_to_reference(coefficient: float, reference: str = "reference_logprobs") -> Regularizer:
    """Penalises the squared distance of the logprobs from a reference's."""
    _check(coefficient)

    def term(data: list[Datum], logprobs: list[torch.Tensor]) -> Term:
        parts = [
            (values - _input(index, datum, reference)).square()[_mask(datum, values)]
            for index, (datum, values) in enumerate(zip(data, logprobs, strict=True))
        ]
        return "l2_to_reference", coefficient * _mean(parts)

    return term


def entropy_bonus(coefficient: float) -> Regularizer:
    """Rewards uncertainty: adds the mean logprob, a one-sample estimate of minus the entropy."""
    _check(coefficient)

    def term(data: list[Datum], logprobs: list[torch.Tensor]) -> Term:
        parts = [values[_mask(datum, values)] for datum, values in zip(data, logprobs, strict=True)]
        return "entropy_bonus", coefficient * _mean(parts)

    return term


def _mean(parts: list[torch.Tensor]) -> torch.Tensor:
    import torch

    joined = torch.cat([part.reshape(-1) for part in parts])
    return joined.mean() if joined.numel() else joined.sum()


def _mask(datum: Datum, values: torch.Tensor) -> torch.Tensor:
    import torch

    weights = datum.loss_fn_inputs.get("weights")
    if weights is None:
        return torch.ones_like(values, dtype=torch.bool)
    return weights.to_torch().reshape(values.shape) != 0


def _input(index: int, datum: Datum, name: str) -> torch.Tensor:
    tensor = datum.loss_fn_inputs.get(name)
    if tensor is None:
        raise ValueError(f"data[{index}].loss_fn_inputs: this regularizer needs {name!r}")
    return tensor.to_torch()


def _check(coefficient: float) -> None:
    if coefficient < 0:
        raise ValueError(f"coefficient: must not be negative, got {coefficient}")
