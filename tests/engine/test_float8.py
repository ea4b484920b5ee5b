"""FP8 base weights: the nearest matrix of bytes, and the products with it whatever the rows.

On a machine without a GPU the kernels run under Triton's interpreter, in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.interpreted import DEVICE, INTERPRETED, elsewhere, here, run_interpreted
from tinkex.engine.model.float8 import LARGEST, rounded

WIDE = torch.float32 if INTERPRETED else torch.bfloat16
"""The interpreter takes the bits of bfloat16 for integers."""


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE, dtype)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def test_a_rounded_matrix_is_the_nearest_one_and_its_scales_are_powers_of_two() -> None:
    weight = random(40, 64) * torch.logspace(-12, 12, 40)[:, None]
    weight[7] = 0.0
    weight[9] = LARGEST * 2.0**-20 * torch.sign(weight[9])
    values, scales = rounded(weight)
    digits, _ = torch.frexp(scales)
    assert bool((digits == 0.5).all())
    back = values.double() * scales
    largest = weight.double().abs().amax(1, keepdim=True)
    # Half a step of three binary digits; below 2**-6 of a scale steps no longer shrink.
    allowed = torch.maximum(weight.double().abs() * 2.0**-4, scales.double() * 2.0**-10)
    assert bool(((back - weight.double()).abs() <= allowed).all())
    assert torch.equal(back[7], torch.zeros_like(back[7]))
    assert torch.equal(back[9], weight[9].double())
    used = values.double().abs().amax(1)[largest[:, 0] > 0]
    assert bool((used >= LARGEST / 2 - 16).all())


@elsewhere
def test_the_kernels_are_right_under_tritons_interpreter() -> None:
    run_interpreted(__file__)


@here
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(("rows", "inputs"), [(1, 512), (19, 528), (140, 80)])
def test_a_product_of_few_rows_is_that_with_the_matrix_the_bytes_stand_for(
    rows: int, inputs: int, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longer ones are cut along their inputs."""
    from tinkex.engine.kernels import float8 as kernel

    monkeypatch.setattr(kernel, "_tiling", lambda rows: kernel.Tiling(64, 32, 4, 2))
    values, scales = rounded(random(80, inputs, seed=1) / inputs**0.5)
    x = random(rows, inputs, seed=2, dtype=WIDE)
    bias, onto = random(80, seed=3, dtype=WIDE), random(rows, 80, seed=4, dtype=WIDE)
    given, row_scales = kernel.narrowed(x) if narrow else (x, None)
    counts = kernel.counters(80, DEVICE)
    exact = given.double() if row_scales is None else given.double() * row_scales
    wanted = exact @ (values.double() * scales).T
    for _ in range(2):  # the counters are as they were before
        found = kernel.few(given, row_scales, values, scales, bias, onto, counts, WIDE)
        assert relative(found, wanted + bias + onto) < (1e-6 if INTERPRETED else 4e-3)
    assert not counts.any()


@here
def test_rows_are_narrowed_as_a_matrix_is_and_widened_with_nothing_lost() -> None:
    from tinkex.engine.kernels import float8 as kernel

    x = random(5, 96, dtype=WIDE)
    x[2] = 0.0
    values, scales = kernel.narrowed(x)
    wanted, wanted_scales = rounded(x)
    assert torch.equal(scales, wanted_scales)
    same = (values.float() == wanted.float()).double().mean()
    # The interpreter loses the carry where digits round up to the next power of two.
    assert same == 1 or (INTERPRETED and same > 0.9)
    wide = kernel.widened(values, scales, WIDE)
    assert torch.equal(wide.double(), values.double() * scales)
