"""What stands around the delta rule: its gates, and the gated norm of what it finds.

On a GPU with Triton each is one kernel, forwards and backwards, elsewhere a few of torch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.model.ops import rms_norm, row_wise


def gates(ba: Tensor, decay_log: Tensor, decay_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Decay and write [N, heads] in float32, from what projections say of write and decay."""
    if runs_triton(ba):
        found: tuple[Tensor, Tensor] = _Gates.apply(ba.contiguous(), decay_log, decay_bias)  # type: ignore[no-untyped-call]  # torch's `apply` is untyped
        return found
    write, decay = ba.float().chunk(2, dim=1)
    decay = -decay_log.exp() * row_wise(F.softplus, decay + decay_bias)
    return decay, row_wise(torch.sigmoid, write)


def gated_norm(x: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm(x) · silu(z): x [N, heads, V], z [N, heads · V]."""
    if runs_triton(x):
        result: Tensor = _GatedNorm.apply(x.contiguous(), z, weight, eps)  # type: ignore[no-untyped-call]  # torch's `apply` is untyped
        return result
    normed = rms_norm(x.to(z.dtype), weight, eps)
    return normed.reshape(z.shape) * row_wise(F.silu, z.float()).to(z.dtype)


class _Gates(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ba: Tensor, decay_log: Tensor, decay_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        from tinkex.engine.kernels.linear import delta_gates

        ctx.save_for_backward(ba, decay_log, decay_bias)
        return delta_gates.gates(ba, decay_log, decay_bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        from tinkex.engine.kernels.linear import delta_gates

        return delta_gates.gates_backward(*grads, *ctx.saved_tensors), None, None


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
        from tinkex.engine.kernels.linear import delta_gates

        ctx.save_for_backward(x, z, weight)
        ctx.eps = eps
        return delta_gates.gated_norm(x, z, weight, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from tinkex.engine.kernels.linear import delta_gates

        x, z, weight = ctx.saved_tensors
        dx, dz = delta_gates.gated_norm_backward(grads[0], x, z, weight, ctx.eps)
        return dx, dz, None, None
