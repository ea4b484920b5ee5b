"""FP8 base weights: the nearest matrix of bytes, and the products with it whatever the rows.

On a machine without a GPU `test_interpreted.py` runs them.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.interpreted import DEVICE, INTERPRETED, here
from tinkex.engine.errors import ModelError
from tinkex.engine.model.block_configs import DenseMlpConfig
from tinkex.engine.model.blocks.block import block_tensors, with_matrices
from tinkex.engine.model.blocks.dense_mlp import DenseMlp
from tinkex.engine.model.matrices import float8
from tinkex.engine.model.matrices.float8 import LARGEST, Float8, Float8Matrix, rounded
from tinkex.engine.model.passes import Pass
from tinkex.engine.process.placement import choose_placement
from tinkex.engine.settings import WorkerConfig

WIDE = torch.float32 if INTERPRETED else torch.bfloat16
"""The interpreter takes the bits of bfloat16 for integers."""


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE, dtype)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def test_a_rounded_matrix_is_the_nearest_one_and_its_scales_are_powers_of_two() -> None:
    weight = random(40, 64) * torch.logspace(-12, 12, 40, device=DEVICE)[:, None]
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


def test_an_old_gpu_and_another_dtype_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    capability = (8, 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with pytest.raises(ModelError, match=r"base: fp8 needs .* this is Card of 8\.0"):
        choose_placement(WorkerConfig("", device="cuda", base="fp8"))
    capability = (9, 0)
    with pytest.raises(ModelError, match="base: fp8-weights goes with dtype bfloat16"):
        choose_placement(WorkerConfig("", device="cuda", dtype="float32", base="fp8-weights"))


@here
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize(("rows", "inputs"), [(1, 512), (19, 528), (140, 80)])
def test_a_product_of_few_rows_is_that_with_the_matrix_the_bytes_stand_for(
    rows: int, inputs: int, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longer ones are cut along their inputs."""
    from tinkex.engine.kernels import float8 as kernel

    monkeypatch.setattr(kernel, "_tiling", lambda rows, terms: kernel.Tiling(64, 32, 4, 2))
    values, scales = rounded(random(80, inputs, seed=1) / inputs**0.5)
    x = random(rows, inputs, seed=2, dtype=WIDE)
    bias, onto = random(80, seed=3, dtype=WIDE), random(rows, 80, seed=4, dtype=WIDE)
    given, row_scales = kernel.narrowed(x, terms)
    counts = kernel.counters(80, DEVICE)
    exact = (given.double() * row_scales).sum(0)
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
    (values,), (scales,) = kernel.narrowed(x, 1)
    wanted, wanted_scales = rounded(x)
    assert torch.equal(scales, wanted_scales)
    assert torch.equal(values.float(), wanted.float())
    wide = kernel.widened(values, scales, WIDE)
    assert torch.equal(wide.double(), values.double() * scales)


@here
def test_two_terms_hold_the_digits_of_bfloat16() -> None:
    from tinkex.engine.kernels import float8 as kernel

    x = random(4, 256).bfloat16().to(WIDE)
    values, scales = kernel.narrowed(x, 2)
    off = ((values.double() * scales).sum(0) - x.double()).abs()
    allowed = x.double().abs() * 2.0**-8 + scales[1].double() * 2.0**-9
    assert bool((off <= allowed).all())


@here
@pytest.mark.parametrize("rows", [float8.FEW, 0])
def test_a_block_in_bytes_computes_and_learns_as_the_one_it_stands_for(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel for few rows, and by widened matrices."""
    monkeypatch.setattr(float8, "LEAST_OUTPUTS", 1)
    monkeypatch.setattr(float8, "FEW", rows)
    monkeypatch.setattr(float8, "TWO_TERMS", rows)
    config = DenseMlpConfig(inner=48)
    plain = DenseMlp(config, random(96, 32, dtype=WIDE) / 6, random(32, 48, seed=1, dtype=WIDE) / 7)
    narrow = with_matrices(plain, Float8(narrow=False).matrix)
    assert isinstance(narrow.gate_up, Float8Matrix)
    assert isinstance(narrow.down, Float8Matrix)
    held = sum(tensor.nbytes for tensor in block_tensors(narrow))
    assert held < 0.6 * sum(tensor.nbytes for tensor in block_tensors(plain))
    wide = [(m.values.double() * m.scales).to(WIDE) for m in (narrow.gate_up, narrow.down)]
    found, wanted = learned(narrow), learned(DenseMlp(config, *wide))
    for got, want in zip(found, wanted, strict=True):
        assert relative(got, want) < 2e-2


def learned(block: DenseMlp) -> tuple[Tensor, Tensor]:
    """What a block makes of some rows, and their gradient."""
    x = random(5, 32, seed=4, dtype=WIDE).requires_grad_()
    out = block.forward(0, x, torch.zeros_like(x), Pass(attend=None, lora=None, angles=()))
    (gradient,) = torch.autograd.grad(out, x, random(5, 32, seed=5, dtype=WIDE))
    return out.detach(), gradient
