"""A frozen matrix and its two products: with a row of inputs, and with a gradient of outputs.

Most are plain tensors [outputs, inputs]. One that is kept in another form is a `FrozenMatrix`,
which makes its own products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from tinkex.engine.cpu import batch_invariant


class FrozenMatrix(ABC):
    """[outputs, inputs] in a form of its own. Its products are asked for without gradients."""

    steady: ClassVar[bool] = False
    """Whether a row's products are the same bits among any number of rows."""

    @abstractmethod
    def linear(self, x: Tensor, bias: Tensor | None, onto: Tensor | None = None) -> Tensor:
        """x @ matrix.T + bias, added to `onto` if there is one, which stays as it is and whose
        dtype is that of the result."""

    @abstractmethod
    def times(self, x: Tensor) -> Tensor:
        """x @ matrix."""

    def logits(self, x: Tensor) -> Tensor:
        """x @ matrix.T in float32."""
        return self.linear(x, None).float()

    @abstractmethod
    def tensors(self) -> Iterator[Tensor]:
        """What it is kept in."""


Matrix: TypeAlias = Tensor | FrozenMatrix


def linear(x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, with a gradient for x if it wants one."""
    if isinstance(weight, Tensor):
        return batch_invariant.linear(x, weight, bias)
    if x.requires_grad and torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]  # torch's `apply` is untyped
    return weight.linear(x, bias)


def linear_wide(x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """`linear` without gradients, and in float32 where a library gives it so: on a GPU."""
    if not isinstance(weight, Tensor) or not x.is_cuda or x.dtype == torch.float32:
        return linear(x, weight, bias)
    wide: Tensor = torch.ops.aten.mm.dtype(x, weight.T, torch.float32)
    return wide if bias is None else wide.add_(bias)


def times(x: Tensor, weight: Matrix) -> Tensor:
    """x @ weight, without gradients."""
    return batch_invariant.times(x, weight) if isinstance(weight, Tensor) else weight.times(x)


def linear_onto(onto: Tensor, x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """`onto` plus `linear`; without gradients `onto` may be written over. It may be wider."""
    if torch.is_grad_enabled():
        return onto + linear(x, weight, bias)
    if not isinstance(weight, Tensor):
        return weight.linear(x, bias, onto)
    if onto.dtype != x.dtype:
        return onto.add_(linear_wide(x, weight, bias))
    if bias is None:
        # One kernel and one pass over the residual less, which a decode step on a GPU feels.
        return onto.addmm_(x, weight.T)
    return onto + linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: FrozenMatrix, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return weight.linear(x, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.weight.times(grads[0]), None, None
