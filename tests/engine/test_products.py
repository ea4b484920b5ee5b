"""Frozen products: the same sums whatever form the matrices are kept in, and no value lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.sampling import tiny_decoder
from tinkex.engine.cpu import half_weights, onednn
from tinkex.engine.cpu.half_weights import HalfProduct, fitting_exponent, halves_work
from tinkex.engine.model import products
from tinkex.engine.model.decoder import Weights
from tinkex.engine.model.products import FrozenProducts

needs_halves = pytest.mark.skipif(not halves_work(), reason="needs torch with FBGEMM")


@pytest.fixture(autouse=True)
def _all_matrices_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests can make do with small ones."""
    monkeypatch.setattr(onednn, "LARGE_MATRIX", 1)


def _matrix(rows: int = 96, columns: int = 64, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.05


def _frozen(unembed: Tensor) -> FrozenProducts:
    """For a model without layers."""
    return FrozenProducts(Weights(unembed, (), unembed[0], unembed))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 4, 17, half_weights.ROWS, half_weights.ROWS + 1])
def test_products_agree_with_float64(stored: torch.dtype, biased: bool, rows: int) -> None:
    weight = _matrix().to(stored).float()
    bias = _matrix(1, 96, seed=1)[0] if biased else None
    x = _matrix(rows, 64, seed=2) * 20
    frozen = _frozen(weight)
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    found = frozen.product(0, "o_proj", x, weight, bias)
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_matrices_of_16_bits_fit_without_loss(stored: torch.dtype) -> None:
    weight = _matrix(512, 512).to(stored).float()
    exponent = fitting_exponent(weight)
    assert exponent is not None
    scaled = weight * 2.0**exponent
    assert torch.equal(scaled.half().float() * 2.0**-exponent, weight)


def test_matrices_of_more_bits_and_broken_ones_do_not_fit() -> None:
    assert fitting_exponent(_matrix()) is None
    broken = _matrix().half().float()
    broken[3, 3] = float("nan")
    assert fitting_exponent(broken) is None


def test_a_wide_range_is_refused_rather_than_rounded() -> None:
    weight = torch.tensor([[1e30, 1e-30], [3.0, 1.0]]).bfloat16().float()
    assert fitting_exponent(weight) is None


@needs_halves
def test_one_matrix_that_does_not_fit_is_kept_in_full() -> None:
    fits, full = _matrix().half().float(), _matrix(seed=3)
    x = _matrix(2, 64, seed=2)
    frozen = _frozen(fits)
    assert frozen.free_rows == half_weights.FREE_ROWS
    for slot, weight in (("o_proj", fits), ("down_proj", full)):
        found = frozen.product(0, slot, x, weight, None)
        torch.testing.assert_close(found, F.linear(x, weight), atol=1e-6, rtol=1e-5)


@needs_halves
def test_a_row_does_not_depend_on_its_company() -> None:
    weight = _matrix(200, 300).half().float()
    x = _matrix(half_weights.ROWS, 300, seed=4)
    product = HalfProduct(weight, None, 0)
    together = product(x)
    for rows in range(1, half_weights.ROWS):
        assert torch.equal(product(x[:rows]), together[:rows])


def test_without_memory_for_a_copy_the_matrices_are_used_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, x = _matrix().half().float(), _matrix(3, 64, seed=2)
    monkeypatch.setattr(products, "MAX_MEMORY_SHARE", 0.0)
    frozen = _frozen(weight)
    assert (frozen.min_rows, frozen.free_rows) == (1, 1)
    assert torch.equal(frozen.product(0, "o_proj", x, weight, None), F.linear(x, weight))


def test_small_matrices_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to another library takes longer than such a product, and nothing is padded for it."""
    monkeypatch.undo()
    weight, x = _matrix().half().float(), _matrix(3, 64, seed=2)
    frozen = _frozen(weight)
    assert frozen.min_rows == 1
    assert torch.equal(frozen.product(0, "o_proj", x, weight, None), F.linear(x, weight))


def test_products_can_be_got_ready_one_by_one_before_they_are_asked_for() -> None:
    weights = tiny_decoder().weights
    frozen = FrozenProducts(weights)
    count = 0
    while frozen.prepare():
        count += 1
    assert count == len(list(weights.products())) == 4 * len(weights.layers) + 1
    ready = dict(frozen._products)
    x = _matrix(2, weights.unembed.shape[1]).to(weights.unembed.device)
    frozen.product(-1, "lm_head", x, weights.unembed, None)
    assert frozen._products == ready
