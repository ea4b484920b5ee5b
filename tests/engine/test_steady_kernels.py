"""Batch-invariant kernels: what they compute is right, and a row's bits are its own.

On a machine without a GPU `test_interpreted.py` runs them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.interpreted import DEVICE, INTERPRETED, elsewhere, here

if INTERPRETED:
    from support.ordered_dot import ordered_dots  # noqa: F401 - a fixture

HEADS, KV_HEADS, GROUP, SIZE = 4, 2, 2, 24
SPLIT = 64
"""Smaller than any engine's, so that short sequences have several."""

DTYPES = [torch.float32, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


# ---- products


@here
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_is_right_with_bias_and_sum_and_through_either_side(dtype: torch.dtype) -> None:
    from tinkex.engine.kernels.steady.product import product

    x, weight = random(19, 72, dtype=dtype), random(70, 72, dtype=dtype, seed=1)
    bias, onto = random(70, dtype=dtype, seed=2), random(19, 70, dtype=dtype, seed=3)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    wanted = F.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(
        product(x, weight, bias).double(), wanted, atol=tolerance, rtol=tolerance
    )
    # Added as by an operation of its own, rounding between the two.
    assert torch.equal(product(x, weight, bias, onto), onto + product(x, weight, bias))
    back = product(onto, weight.T)
    torch.testing.assert_close(
        back.double(), onto.double() @ weight.double(), atol=tolerance, rtol=tolerance
    )
    wide = product(x, weight, dtype=torch.float32)
    assert wide.dtype == torch.float32
    assert torch.equal(wide.to(dtype), product(x, weight))


@here
@pytest.mark.parametrize("transposed", [False, True])
def test_a_rows_product_is_the_same_among_any_number_of_rows(transposed: bool) -> None:
    from tinkex.engine.kernels.steady.product import MANY, product

    x = random(130, 100, dtype=torch.bfloat16)
    weight = random(70, 100, dtype=torch.bfloat16, seed=1)
    weight = weight.T.contiguous().T if transposed else weight
    together = product(x, weight)
    for start, stop in ((0, 1), (129, 130), (3, 5), (0, 16), (9, 26), (60, 124), (1, 66)):
        assert torch.equal(product(x[start:stop], weight), together[start:stop]), (start, stop)
    # So many rows that a program takes more columns too, here at once.
    assert torch.equal(product(x, weight, tiling=MANY), together)


@here
def test_a_card_whose_tilings_disagree_gets_one_for_any_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tinkex.engine.kernels.steady import product as kernel

    monkeypatch.setattr(kernel._Choice, "agreed", True)
    weight = random(8, 16, dtype=torch.bfloat16)
    assert kernel.settle(weight, torch.bfloat16)
    assert kernel.tiling_of(1, 8) != kernel.tiling_of(1000, 8)
    made = kernel.product

    def by_tiling(x: Tensor, weight: Tensor, *, dtype: torch.dtype, tiling: Any) -> Tensor:
        return made(x, weight, dtype=dtype, tiling=tiling) + (tiling == kernel.MANY)

    monkeypatch.setattr(kernel, "product", by_tiling)
    assert not kernel.settle(weight, torch.bfloat16)
    assert kernel.tiling_of(1, 8) == kernel.tiling_of(1000, 8) == kernel.ANY


@here
def test_the_library_multiplies_by_the_numbers_of_rows_where_it_found_our_bits_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tinkex.engine.kernels.steady import library
    from tinkex.engine.kernels.steady.product import Tiling, product

    x, weight = random(600, 16), random(6, 16, seed=1)
    onto = random(600, 6, seed=2)
    asked: list[int] = []
    wrong = {64}

    def multiply(x: Tensor, weight: Tensor, out: Tensor) -> None:
        asked.append(len(x))
        out.copy_(own(x))
        out[-1, -1] += len(x) in wrong

    def own(x: Tensor) -> Tensor:
        return product(x, weight, tiling=Tiling(16, 16, 16, 4, 2))

    monkeypatch.setattr(library, "_trusted", {})
    monkeypatch.setattr(library, "_multiply", multiply)
    wanted = own(x)
    library.learn(weight, torch.float32, own, most_rows=512)
    asked.clear()
    for rows in (1, 32, 64, 100, 128, 600):
        assert torch.equal(product(x[:rows], weight), wanted[:rows]), rows
        added = product(x[:rows], weight, onto=onto[:rows])
        assert torch.equal(added, wanted[:rows] + onto[:rows]), rows
    # Of 600 rows, 512 at once; of 64, none.
    assert asked == [32, 32, 128, 128, 512, 512]
    asked.clear()
    library.forget()
    assert torch.equal(product(x, weight), wanted)
    assert not asked


@elsewhere
def test_tilings_compile_to_matrix_instructions_of_one_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a Hopper card, without one: what the interpreter cannot show."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from tinkex.engine.kernels.steady.product import MANY, WIDE

    found = [instructions(tiling) for tiling in (WIDE[16], MANY)]
    assert found == [{"wgmma.mma_async.sync.aligned.m64n16k16"},
                     {"wgmma.mma_async.sync.aligned.m64n256k16"}]  # fmt: skip


def instructions(tiling: Any) -> set[str]:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from tinkex.engine.kernels.steady.product import _product

    constants = {
        "inner_stride": 1, "BIAS": False, "ONTO": True, "ROWS": tiling.rows,
        "COLUMNS": tiling.columns, "INPUTS": tiling.inputs, "GROUP": 8, "EVEN": True,
    }  # fmt: skip
    kinds = dict.fromkeys(("x", "weight", "bias", "onto", "out"), "*bf16")
    signature = {name: kinds.get(name, "i32") for name in _product.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    whole = ("x", "weight", "onto", "out", "outputs", "inputs", "x_stride", "column_stride")
    places = {
        (at,): [["tt.divisibility", 16]] for at, name in enumerate(signature) if name in whole
    }
    source = ASTSource(_product, signature, constants, places)
    options = {"num_warps": tiling.warps, "num_stages": tiling.stages, "enable_fp_fusion": True}
    made = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return set(re.findall(r"wgmma\.mma_async[.\w]*?k16|mma\.sync[.\w]*", made.asm["ptx"]))


# ---- attention


def packed(lengths: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    count = sum(lengths)
    q = random(count, HEADS, SIZE, dtype=dtype)
    k, v = (random(count, KV_HEADS, SIZE, dtype=dtype, seed=seed) for seed in (1, 2))
    return q, k, v


def attend_packed(
    lengths: Sequence[int], q: Tensor, k: Tensor, v: Tensor, window: int | None,
    programs: int | None = None,
) -> Tensor:  # fmt: skip
    from tinkex.engine.kernels.steady import attention as kernel

    starts = np.cumsum([0, *lengths])
    chunks = [(int(at), n, 0, int(at)) for at, n in zip(starts, lengths, strict=False)]
    cut = torch.from_numpy(kernel.tiles(chunks, GROUP)).to(DEVICE)
    splits = -(-max(lengths) // SPLIT)
    return kernel.attend(q, kernel.Keys(k, v), cut, window, SPLIT, splits, programs=programs or 1)


def attend_paged(
    tokens: Tensor, pages: Sequence[int], q: Tensor, first: int, window: int | None, programs: int
) -> Tensor:
    """A chunk whose first query is at `first`, its keys in pages of 16."""
    from tinkex.engine.kernels.steady import attention as kernel

    table = torch.tensor([pages], dtype=torch.int32, device=DEVICE)
    cut = torch.from_numpy(kernel.tiles([(0, len(q), first, 0)], GROUP)).to(DEVICE)
    keys = kernel.Keys(tokens[:, 0], tokens[:, 1], table, 16, len(pages), 1)
    return kernel.attend(q, keys, cut, window, SPLIT, len(pages) // 4 + 1, programs=programs)


def plain(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """Of one sequence, in float64."""
    place = torch.arange(len(q), device=q.device)
    distance = place[:, None] - place[None, :]
    seen = (distance >= 0) & (distance < (window or len(q)))
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    return F.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=seen, enable_gqa=True
    )[0].transpose(0, 1)


@here
@pytest.mark.parametrize(("dtype", "window"), [(torch.float32, None), (torch.bfloat16, 70)])
def test_attention_is_right_and_a_sequence_keeps_its_bits_in_company(
    dtype: torch.dtype, window: int | None
) -> None:
    lengths = [1, 130, 3]
    q, k, v = packed(lengths, dtype)
    together = attend_packed(lengths, q, k, v, window)
    start = 0
    for length in lengths:
        own = slice(start, start + length)
        wanted = plain(q[own], k[own], v[own], window)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(together[own].double(), wanted, atol=tolerance, rtol=tolerance)
        alone = attend_packed([length], q[own], k[own], v[own], window)
        assert torch.equal(together[own], alone), length
        start += length


@here
def test_chunks_of_any_cut_and_single_tokens_find_what_training_finds() -> None:
    length, window = 135, 70  # without a window: the whole engine's test
    q, k, v = packed([length], torch.bfloat16)
    wanted = attend_packed([length], q, k, v, window)
    assert torch.equal(attend_packed([length], q, k, v, window, programs=2), wanted)
    pages = list(np.random.default_rng(0).permutation(12)[:10])
    tokens = random(12 * 16, 2, KV_HEADS, SIZE, dtype=torch.bfloat16, seed=9)
    for at in range(length):
        place = pages[at // 16] * 16 + at % 16
        tokens[place, 0], tokens[place, 1] = k[at], v[at]
    for first, stop, programs in ((0, 1, 1), (63, 66, 1), (100, 135, 3)):
        found = attend_paged(tokens, pages, q[first:stop], first, window, programs)
        assert torch.equal(found, wanted[first:stop]), (first, stop)
    for at, programs in ((63, 2), (64, 1), (134, 2)):
        found = attend_paged(tokens, pages, q[at : at + 1], at, window, programs)
        assert torch.equal(found, wanted[at : at + 1]), at


@here
@pytest.mark.parametrize("window", [None, 40])
def test_gradients_of_attention_are_right_and_a_sequences_own(window: int | None) -> None:
    from tinkex.engine.training.steady_attention import (
        PackedTiles,
        SteadyAttention,
        SteadyPackedAttention,
    )

    lengths = [2, 66]
    q, k, v = packed(lengths, torch.float32)
    slope = random(sum(lengths), HEADS, SIZE, seed=5)

    def gradients(own: slice, attend: SteadyAttention) -> tuple[Tensor, ...]:
        given = [x[own].clone().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(attend(0, *given), given, slope[own])

    # As a captured pass has them: buffers for more tokens than there are.
    tiles = PackedTiles(sum(lengths) + 20, GROUP, DEVICE)
    tiles.fill(lengths)
    captured = SteadyAttention(tiles.queries, tiles.keys, [window], SPLIT, 256)
    together = gradients(slice(None), captured)
    start = 0
    for length in lengths:
        own = slice(start, start + length)
        exact = [x[own].double().requires_grad_() for x in (q, k, v)]
        wanted = torch.autograd.grad(plain(*exact, window), exact, slope[own].double())
        single = SteadyPackedAttention([length], [window], GROUP, SPLIT, DEVICE)
        for found, alone, want in zip(together, gradients(own, single), wanted, strict=True):
            torch.testing.assert_close(found[own].double(), want, atol=2e-5, rtol=2e-5)
            assert torch.equal(found[own], alone)
        start += length
