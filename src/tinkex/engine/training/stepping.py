"""One optimizer step, all or nothing: it leaves finite numbers, or changes nothing and says why.

Whether a step can overflow is decided beforehand, from bounds that are kept as plain numbers with
the run: no pass over its state, and on a GPU nothing to wait for. A step that the bounds cannot
rule out is computed on copies and checked before it counts. Either way the bits are the same.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tinkex.engine.errors import UserError
from tinkex.engine.training.optimizers import Bounds, Params, clip
from tinkex.engine.training.run import Run

_LARGEST = torch.finfo(torch.float32).max
_SAFE = _LARGEST / 16
"""Below this a bound holds whatever was rounded on the way to it."""


class Stepped(NamedTuple):
    """The gradient's norm before clipping, and how far the weights went."""

    norm: float
    moved: float


def step(run: Run, params: Params) -> Stepped:
    """Apply and clear the accumulated gradient; without one it is zero. A step that raises leaves
    weights, optimizer, step count and accumulated gradient as they were."""
    bounds = run.bounds or _measure(run)
    after = run.optimizer.bounds_after(bounds, run.gathered, run.step + 1, params)
    if after.weights <= _SAFE and after.mean <= _SAFE:
        gradient = torch.zeros_like(run.adapter.master) if run.gradient is None else run.gradient
        stepped = _move(run, run.adapter.master, gradient, params)
    else:
        stepped, after = _try_on_copies(run, params)
    run.adapter.refresh()
    run.gradient, run.gathered, run.bounds = None, 0.0, after
    run.step += 1
    return stepped


def _move(run: Run, weights: Tensor, gradient: Tensor, params: Params) -> Stepped:
    norm = clip(run.adapter.layout.shares, gradient, params["grad_clip_norm"])
    return Stepped(norm, run.optimizer.step(weights, gradient, run.step + 1, params))


def _try_on_copies(run: Run, params: Params) -> tuple[Stepped, Bounds]:
    master, kept = run.adapter.master, run.optimizer.tensors
    gradient = torch.zeros_like(master) if run.gradient is None else run.gradient.clone()
    weights = master.clone()
    run.optimizer.tensors = {name: tensor.clone() for name, tensor in kept.items()}
    try:
        stepped = _move(run, weights, gradient, params)
        largest = run.adapter.layout.shares.largest
        bounds = Bounds(largest(weights), largest(run.optimizer.tensors["mean"]))
        rest = [largest(tensor) for tensor in run.optimizer.tensors.values()]
        if not all(math.isfinite(bound) for bound in (bounds.weights, *rest)):
            raise OverflowError
    except BaseException as error:
        run.optimizer.tensors = kept
        # torch says RuntimeError of a number that has no float32.
        overflow = isinstance(error, OverflowError | RuntimeError)
        if overflow and not isinstance(error, torch.OutOfMemoryError):
            raise _refusal(params) from error
        raise
    master.copy_(weights)
    return stepped, bounds


def _measure(run: Run) -> Bounds:
    largest = run.adapter.layout.shares.largest
    return Bounds(largest(run.adapter.master), largest(run.optimizer.tensors["mean"]))


def _refusal(params: Params) -> UserError:
    named = ("learning_rate", "weight_decay", "eps")
    said = ", ".join(f"{name}={params[name]:g}" for name in named if name in params)
    return UserError(
        f"optim_params: with {said} this step would make the weights infinite or undefined; "
        "nothing was changed. Send a smaller learning_rate, or load a checkpoint if the weights "
        "have grown beyond use"
    )
