"""The fused operations equal torch's own, forward and backward, on every device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.training import DEVICE
from tinkex.engine.model.ops import rms_norm, rotate, swiglu

DTYPES = [torch.float32] + ([torch.bfloat16] if DEVICE == "cuda" else [])
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-2}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE, dtype)


def compare(own: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Values with and without gradients, and the gradient, against float32."""
    one, other = x.detach().clone().requires_grad_(), x.detach().float().requires_grad_()
    first, second = own(one), plain(other)
    weight = random(*first.shape, seed=9)
    close = {"rtol": TOLERANCE[x.dtype], "atol": TOLERANCE[x.dtype]}
    torch.testing.assert_close(first.float(), second, **close)
    with torch.no_grad():
        torch.testing.assert_close(own(x).float(), second, **close)
    (first * weight.to(x.dtype)).sum().backward()
    (second * weight).sum().backward()
    assert one.grad is not None
    torch.testing.assert_close(one.grad.float(), other.grad, **close)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 64), (3, 100), (4, 3, 24)])
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = random(shape[-1], seed=1)
    compare(
        lambda x: rms_norm(x, weight.to(dtype), 1e-5),
        lambda x: F.rms_norm(x, (shape[-1],), weight, 1e-5),
        random(*shape, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu(dtype: torch.dtype) -> None:
    compare(
        swiglu,
        lambda x: F.silu(x[:, :1100]) * x[:, 1100:],
        random(7, 2200, dtype=dtype),
    )


@pytest.mark.parametrize("wide", [False, DEVICE == "cpu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotate_takes_a_slice_of_wider_rows(dtype: torch.dtype, wide: bool) -> None:
    phase = random(6, 1, 12, seed=3)
    cos, sin = phase.cos(), phase.sin()

    def plain(x: Tensor) -> Tensor:
        turned = x[:, :5]
        first, second = turned[..., :12], turned[..., 12:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def own(x: Tensor) -> Tensor:
        angles = (cos.repeat(1, 1, 2), torch.cat([-sin, sin], -1)) if wide else (cos, sin)
        return rotate(x[:, :5], *(part.to(dtype) for part in angles))

    compare(own, plain, random(6, 7, 24, dtype=dtype))
