"""The gate between an expert's two products: one kernel on a GPU with Triton, else torch's.

The weight of a token's choice scales the row here, so that what comes back to a token is a sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.model.ops import row_wise, swiglu, swiglu_back
from tinkex.engine.model.routes import Routes

_SLOPE = 1.702
"""Of the gate's sigmoid in gpt-oss."""


def gated_rows(
    gate_up: Tensor, share: Tensor, bias: Tensor | None, routes: Routes, limit: float | None
) -> Tensor:
    """[rows, inner] from gate and up [rows, 2 · inner], each row times its share.

    `bias` [experts, 2 · inner] is added first. Mixtures with a limit have the gate of gpt-oss.
    """
    if runs_triton(gate_up):
        result: Tensor = _Gate.apply(gate_up, share, bias, routes.known_experts, limit)  # type: ignore[no-untyped-call]  # torch's `apply` is untyped
        return result
    if bias is not None:
        gate_up = gate_up + bias.index_select(0, routes.known_experts)
    if limit is None:
        shared: Tensor = _SwiGluShare.apply(gate_up, share)  # type: ignore[no-untyped-call]  # torch's `apply` is untyped
        return shared
    return _clamped(gate_up, limit) * share[:, None].to(gate_up.dtype)


def _clamped(gate_up: Tensor, limit: float) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * row_wise(torch.sigmoid, gate * _SLOPE)


class _SwiGluShare(torch.autograd.Function):
    """As one step of the graph: nothing is kept for the product with the share."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, share: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up, share)
        return swiglu(gate_up).mul_(share[:, None])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate_up, share = ctx.saved_tensors
        grad, up = grads[0], gate_up.chunk(2, dim=-1)[1]
        found, silu = swiglu_back(grad * share[:, None].to(grad.dtype), gate_up)
        return found, silu.mul_(up).mul_(grad).sum(-1).to(share.dtype)


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gate_up: Tensor, share: Tensor, bias: Tensor | None, experts: Tensor,
        limit: float | None,
    ) -> Tensor:  # fmt: skip
        from tinkex.engine.kernels.mixtures import experts as kernel

        ctx.save_for_backward(gate_up, share, bias, experts)
        ctx.limit = limit
        return kernel.gate(gate_up, share, bias, experts, limit)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from tinkex.engine.kernels.mixtures import experts as kernel

        gate_up, share, bias, experts = ctx.saved_tensors
        found = kernel.gate_backward(grads[0], gate_up, share, bias, experts, ctx.limit)
        return (*found, None, None, None)
