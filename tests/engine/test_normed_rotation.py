"""Heads that are normed and rotated in one kernel are what they are in two steps, gradients too.

On a machine without a GPU the kernels run under Triton's interpreter, in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

RUNS = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-6

here = pytest.mark.skipif(not RUNS, reason="needs a GPU; interpreted by the first test here")


@pytest.mark.skipif(RUNS, reason="the kernels run in this process")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_kernels_are_right_under_tritons_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def plainly(x: Tensor, gains: tuple[Tensor, Tensor], cos: Tensor, sin: Tensor, queries: int):  # type: ignore[no-untyped-def]
    parts = (x[:, :queries], x[:, queries:])
    normed = [F.rms_norm(p, (p.shape[-1],), g, EPS) for p, g in zip(parts, gains, strict=True)]
    first, second = torch.cat(normed, dim=1).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@here
@pytest.mark.parametrize(("queries", "keys", "size"), [(6, 2, 32), (5, 5, 24), (1, 1, 128)])
def test_one_kernel_is_what_norm_and_rotation_are(queries: int, keys: int, size: int) -> None:
    from tinkex.engine.kernels import normed_rotation as kernels

    tokens, heads = 7, queries + keys
    packed = random(tokens, heads + keys, size, seed=1)  # values lie behind, as in a fused product
    gains = random(size, seed=2), random(size, seed=3)
    phase = random(tokens, 1, size // 2, seed=4)
    cos, sin = phase.cos(), phase.sin()
    x = packed[:, :heads].detach().requires_grad_()
    wanted = plainly(x, gains, cos, sin, queries)
    found, scale = kernels.forward(packed[:, :heads], gains, cos, sin, EPS, queries)
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-4, atol=1e-5)
    grad = random(tokens, heads + 1, size, seed=5)[:, 1:]
    wanted.backward(grad)
    back = kernels.backward(grad, packed[:, :heads], gains, cos, sin, scale, queries)
    torch.testing.assert_close(back, x.grad, rtol=1e-4, atol=1e-5)


def test_where_no_kernel_runs_the_same_is_computed_in_steps() -> None:
    from tinkex.engine.model.ops import normed_rotation

    x, gains = random(3, 6, 16, seed=1), (random(16, seed=2), random(16, seed=3))
    phase = random(3, 1, 8, seed=4)
    angles = phase.cos(), phase.sin()
    wanted = plainly(x, gains, *angles, queries=4)
    torch.testing.assert_close(normed_rotation(x, gains, 4, angles, EPS), wanted)
    given = x.clone().requires_grad_()
    torch.testing.assert_close(normed_rotation(given, gains, 4, angles, EPS), wanted)
