"""The small operations between a decoder's matrix products, with lean backward passes.

Weights are frozen, so a backward pass needs only the gradient of the input; each operation keeps
just what that takes. Without gradients the same arithmetic runs with nothing kept at all. On a GPU
with Triton each is one kernel, elsewhere a few of torch's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.cpu.threads import VECTOR, leaves_uncut, uncut_vectors
from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.model.matrices.frozen import Matrix


def _fused(x: Tensor, usable: bool) -> Any:
    """The kernels, if x lies where and how they can take it."""
    if not (usable and runs_triton(x)):
        return None
    from tinkex.engine.kernels import elementwise as kernels

    return kernels


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None
) -> Tensor:  # fmt: skip
    """x / rms(x) · weight over the last dimension, in float32, returned in `dtype`, x's by default.

    In a training pass always by one formula: whether x wants a gradient depends on what others in
    the batch train, and must not change a bit of it."""
    if torch.is_grad_enabled():
        return _RmsNorm.apply(x, weight, eps, dtype)  # type: ignore[no-any-return, no-untyped-call]  # torch's `apply` is untyped
    kernels = _fused(x, x.ndim == 2 and x.is_contiguous())
    if kernels is not None:
        normed: Tensor = kernels.rms_norm(x, weight, eps, dtype)[0]
        return normed
    if {x.dtype, weight.dtype, dtype or x.dtype} != {torch.float32}:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
        return (wide * scale).mul_(weight).to(dtype or x.dtype)
    # The same in fewer operations: of a small model's step they are a good part.
    size = x.shape[-1]
    norm = torch.linalg.vector_norm(x, 2, -1, True).hypot_(
        _constant(math.sqrt(eps * size), x.device)
    )
    return torch.addcdiv(_constant(0.0, x.device), x * weight, norm, value=math.sqrt(size))


@functools.cache
def _constant(value: float, device: torch.device) -> Tensor:
    return torch.tensor(value, device=device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [N, heads, head_dim], first half against second half, by angles as
    `Rope` makes them."""
    if x.requires_grad and torch.is_grad_enabled():
        return _Rotate.apply(x, cos, sin)  # type: ignore[no-any-return, no-untyped-call]  # torch's `apply` is untyped
    return _turn(x, cos, sin, 1.0)


def logits(x: Tensor, weight: Matrix) -> Tensor:
    """x @ weight.T, float32 also where x is not: rounded to bfloat16, the logits of training and
    of sampling would differ by more than everything before them does."""
    if not isinstance(weight, Tensor):
        return weight.logits(x)
    if x.is_cuda and x.dtype != torch.float32:
        wide: Tensor = torch.ops.aten.mm.dtype(x, weight.T, torch.float32)
        return wide
    return F.linear(x, weight)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(first half) · second half of the last dimension."""
    if gate_up.requires_grad and torch.is_grad_enabled():
        return _SwiGlu.apply(gate_up)  # type: ignore[no-any-return, no-untyped-call]  # torch's `apply` is untyped
    return _gated(gate_up)


def row_wise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An elementwise function of [rows, width]. A CPU rounds what is left over after whole vectors
    otherwise, so rows are filled up to whole ones: no row's bits depend on how many there are."""
    width = x.shape[1]
    short = -width % VECTOR
    if not x.is_cpu:
        return function(x)
    whole = F.pad(x, (0, short)) if short else x
    with uncut_vectors(whole):
        found = function(whole)
    return found[:, :width] if short else found


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None
    ) -> Tensor:  # fmt: skip
        kernels = _fused(x, x.ndim == 2 and x.is_contiguous())
        if kernels is not None:
            out, scale = kernels.rms_norm(x, weight, eps, dtype)
        else:
            scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True).add_(eps))
            out = (x * scale).mul_(weight).to(dtype or x.dtype)
        ctx.kernels = kernels
        ctx.save_for_backward(x, weight, scale)
        normed: Tensor = out
        return normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        x, weight, scale = ctx.saved_tensors
        if ctx.kernels is not None:
            return ctx.kernels.rms_norm_backward(grads[0], x, weight, scale), None, None, None
        along = (grads[0] * weight).float()
        inner = (along * x).mean(-1, keepdim=True).mul_(scale).mul_(scale).mul_(scale)
        return along.mul_(scale).addcmul_(x, inner, value=-1.0).to(x.dtype), None, None, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grads[0], cos, sin, -1.0), None, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _gated(gate_up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor]:
        (gate_up,) = ctx.saved_tensors
        kernels = _fused(gate_up, gate_up.is_contiguous())
        if kernels is not None:
            return (kernels.swiglu_backward(grads[0], gate_up),)
        return (swiglu_back(grads[0], gate_up)[0],)


def swiglu_back(grad: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of gate and up, and silu(gate), which is on the way. One sigmoid serves both:
    of a CPU's time here it is the larger part."""
    gate, up = gate_up.chunk(2, dim=-1)
    out = torch.empty_like(gate_up)
    to_gate, to_up = out.chunk(2, dim=-1)
    with uncut_vectors(gate):
        slope = torch.sigmoid(gate)
        silu = gate * slope
        slope.addcmul_(silu, 1 - slope)
    torch.mul(grad, silu, out=to_up)
    torch.mul(slope.mul_(up), grad, out=to_gate)
    return out, silu


def _gated(gate_up: Tensor) -> Tensor:
    kernels = _fused(gate_up, gate_up.is_contiguous())
    if kernels is not None:
        result: Tensor = kernels.swiglu(gate_up)
        return result
    gate, up = gate_up.chunk(2, dim=-1)
    if leaves_uncut(gate):
        return F.silu(gate).mul_(up)
    with uncut_vectors(gate):
        return F.silu(gate).mul_(up)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    kernels = _fused(x, x.stride(-1) == 1)
    if kernels is not None:
        result: Tensor = kernels.rotate(x, cos, sin, sign)
        return result
    if cos.shape[-1] < x.shape[-1]:
        cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
    return torch.mul(x, cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin, value=sign)
