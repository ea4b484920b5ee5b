"""Optimizers over one flat vector: each owns its state and turns a gradient into a step.

`AdamW` is Adam with bias correction and decoupled weight decay. `Dimuon` keeps a running average of
the gradient and moves each LoRA factor along that average's nearest semi-orthogonal matrix, whose
Frobenius norm is sqrt(rank), times the learning rate. The service documents that much of its own
Dimuon; its damping and its rank correction are not public, and there are none here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tinkex.engine.adapters.layout import AdapterLayout
from tinkex.engine.adapters.shares import Shares
from tinkex.engine.errors import UserError
from tinkex.engine.kernels.available import runs_triton

Params = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Bounds:
    """No weight and no element of the mean is larger than this, in absolute value."""

    weights: float
    mean: float


class Optimizer(Protocol):
    """`tensors` is the whole state besides the step count; it is saved and restored as it is."""

    name: str
    tensors: dict[str, Tensor]

    def step(self, weights: Tensor, gradient: Tensor, step: int, params: Params) -> float:
        """Move `weights`; the gradient may be overwritten. `step` counts from 1.

        Returns the norm of the move, weight decay not included.
        """
        ...

    def bounds_after(self, bounds: Bounds, gradient: float, step: int, params: Params) -> Bounds:
        """Upper bounds after a step, from those before it and the gradient's norm."""
        ...


class AdamW:
    name = "adamw"

    def __init__(self, layout: AdapterLayout, device: torch.device) -> None:
        self._shares = layout.shares
        self.tensors = {
            "mean": torch.zeros(layout.size, device=device),
            "square": torch.zeros(layout.size, device=device),
        }

    def step(self, weights: Tensor, gradient: Tensor, step: int, params: Params) -> float:
        mean, square = self.tensors["mean"], self.tensors["square"]
        beta1, beta2, rate = params["beta1"], params["beta2"], params["learning_rate"]
        spread, size = math.sqrt(1 - beta2**step), rate / (1 - beta1**step)
        keep = 1 - rate * params["weight_decay"]
        if runs_triton(weights):
            from tinkex.engine.kernels import adamw as adamw_kernel

            lengths = [
                adamw_kernel.step(
                    weights[piece], gradient[piece], mean[piece], square[piece], beta1=beta1,
                    beta2=beta2, spread=spread, eps=params["eps"], keep=keep, size=size,
                )
                for piece in self._shares.pieces()
            ]  # fmt: skip
            return size * self._shares.length(lengths)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = torch.sqrt(square, out=gradient).div_(spread).add_(params["eps"])
        direction = torch.div(mean, scale, out=gradient)
        weights.mul_(keep).add_(direction, alpha=-size)
        return size * float(self._shares.norm(direction))

    def bounds_after(self, bounds: Bounds, gradient: float, step: int, params: Params) -> Bounds:
        """Between mean and gradient lies the new mean; its divisor is `eps` at least."""
        mean = max(bounds.mean, gradient)
        rate = params["learning_rate"]
        keep, size = 1 - rate * params["weight_decay"], rate / (1 - params["beta1"] ** step)
        return Bounds(abs(keep) * bounds.weights + size * (mean / params["eps"]), mean)


class Dimuon:
    name = "dimuon"

    def __init__(self, layout: AdapterLayout, device: torch.device) -> None:
        self._layout = layout
        self.tensors = {"mean": torch.zeros(layout.size, device=device)}

    def step(self, weights: Tensor, gradient: Tensor, step: int, params: Params) -> float:
        mean = torch.lerp(self.tensors["mean"], gradient, 1 - params["beta1"])
        whole, shares = self._layout.whole, self._layout.shares
        average = shares.joined(mean)
        directions = [orthogonalise(matrices) for matrices in whole.matrices(average)]
        moved = sum(float(direction.square().sum()) for direction in directions)
        step_by = torch.cat([direction.flatten() for direction in directions])
        # Whatever could fail has been done; what follows cannot stop half-way.
        self.tensors["mean"] = mean
        weights.add_(shares.own(step_by), alpha=-params["learning_rate"])
        return params["learning_rate"] * math.sqrt(moved)

    def bounds_after(self, bounds: Bounds, gradient: float, step: int, params: Params) -> Bounds:
        """No number of a matrix with orthonormal rows or columns, nearly enough, is over 2."""
        mean = max(bounds.mean, gradient)
        return Bounds(bounds.weights + 2 * params["learning_rate"], mean)


FAMILIES: dict[str, type[AdamW] | type[Dimuon]] = {"adamw": AdamW, "dimuon": Dimuon}

SMALLEST_EPS = 1.2e-38
"""Less than this is nothing in float32, in which steps are made."""
_BELOW_ONE = ("beta1", "beta2")
_FIELDS = {
    "adamw": ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm"),
    "dimuon": ("learning_rate", "beta1", "grad_clip_norm"),
}


def make_optimizer(name: str, layout: AdapterLayout, device: torch.device) -> Optimizer:
    check_family(name)
    return FAMILIES[name](layout, device)


def check_family(name: str) -> None:
    if name not in FAMILIES:
        raise UserError(f"optimizer: {name!r} is not known; known are {', '.join(FAMILIES)}")


def check_params(name: str, params: Params) -> None:
    """Check that all fields of the family are given, no others, and each in its range."""
    fields = _FIELDS[name]
    for key in sorted(params.keys() ^ set(fields)):
        state = "missing" if key in fields else f"no setting of {name}"
        raise UserError(f"optim_params: {key} is {state}; it takes {', '.join(fields)}")
    for key, value in params.items():
        if not math.isfinite(value) or (value < 0 and key != "grad_clip_norm"):
            raise UserError(f"optim_params: {key} must be a finite number of at least 0")
        if key in _BELOW_ONE and value >= 1:
            raise UserError(f"optim_params: {key} must be below 1, not {value:g}")
        if key == "eps" and value < SMALLEST_EPS:
            raise UserError(
                f"optim_params: eps must be at least {SMALLEST_EPS:g}, not {value:g}: weights "
                "without a gradient would be divided by zero. The default is 1e-12"
            )


def clip(shares: Shares, gradient: Tensor, limit: float) -> float:
    """Scale the gradient down to the norm `limit` (0 or less: never); returns its norm before."""
    norm = float(shares.norm(gradient))
    if 0 < limit < norm:
        gradient.mul_(limit / norm)
    return norm


# Quintic Newton-Schulz steps for the matrix sign. The first ones pull small singular values up
# fast and leave them near one; the classical last ones bring them to one within float32.
_FAST = (3.4445, -4.7750, 2.0315)
_EXACT = (1.875, -1.25, 0.375)
_STEPS = (*(_FAST,) * 6, *(_EXACT,) * 4)


def orthogonalise(stack: Tensor) -> Tensor:
    """For each matrix of [count, rows, columns], the nearest with orthonormal rows or columns.

    A zero matrix stays zero.
    """
    x: Tensor = stack.mT if stack.shape[-2] > stack.shape[-1] else stack
    norms = torch.linalg.matrix_norm(x, keepdim=True)
    x = x / norms.clamp(min=torch.finfo(x.dtype).tiny)
    for a, b, c in _STEPS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if stack.shape[-2] > stack.shape[-1] else x
