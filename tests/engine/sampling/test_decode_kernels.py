"""The kernels of decode steps compute what separate operations compute.

On a machine without a GPU `test_interpreted.py` runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor

from support.interpreted import DEVICE, INTERPRETED, here

if TYPE_CHECKING:
    from tinkex.engine.kernels.token_attention import Pages

PAGE = 16
HEADS, KV_HEADS, SIZE = 6, 2, 32
LENGTHS = [1, 2, 16, 17, 64, 65, 66, 250]


@here
@pytest.mark.parametrize(("splits", "summed"), [(1, False), (4, True)])
@pytest.mark.parametrize(
    ("gated", "normed", "rotated", "window", "sunk"),
    [
        (False, True, 32, None, False),
        (True, True, 8, None, False),
        (False, False, 32, 7, True),
        (False, False, 0, 70, False),
        (False, True, 32, None, True),
    ],
)
def test_a_tokens_attention_is_one_kernel_with_the_same_result(
    splits: int, summed: bool, gated: bool, normed: bool, rotated: int, window: int | None,
    sunk: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from tinkex.engine.kernels import heads as heads_kernel
    from tinkex.engine.kernels import paged_attention as paged_kernel
    from tinkex.engine.kernels import token_attention as kernel

    monkeypatch.setattr(paged_kernel, "splits_for", lambda programs: splits)
    monkeypatch.setattr(paged_kernel, "MIN_SHARE", 64)
    rows = len(LENGTHS)
    shape = heads_kernel.Shape(HEADS, KV_HEADS, SIZE, 1e-6, 0.7, gated)
    qkv = random(rows, shape.sources * SIZE, seed=1)
    plus = random(rows, shape.sources * SIZE, seed=8) if summed else None
    norms = (random(SIZE, seed=2), random(SIZE, seed=3)) if normed else None
    angles = (random(rows, rotated // 2, seed=4), random(rows, rotated // 2, seed=5))
    sinks = random(HEADS, seed=6) if sunk else None
    pages = pages_of(LENGTHS, window)
    counts = kernel.counters(rows, KV_HEADS, DEVICE)
    alone = pages._replace(tokens=pages.tokens.clone())
    whole = qkv if plus is None else qkv + plus
    ready = heads_kernel.ready(whole, norms, angles if rotated else None, shape)
    q, k = ready[:, :HEADS], ready[:, HEADS:]
    given = whole.view(rows, shape.sources, SIZE)
    paged_kernel.write(alone.tokens, alone.places, k, given[:, -KV_HEADS:])
    wanted = paged_kernel.attend(
        q, alone.tokens, alone.table, alone.positions, PAGE, window, sinks
    ).reshape(rows, HEADS * SIZE)
    if gated:
        wanted = wanted * torch.sigmoid(given[:, 1 : 2 * HEADS : 2].reshape(rows, -1))
    for _ in range(2):  # what counts splits is zero again after each
        found = kernel.attend(
            qkv, plus, norms, angles if rotated else None, sinks, shape, pages, counts
        )
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pages.tokens, alone.tokens, rtol=1e-5, atol=1e-6)
    assert not counts.any()


@here
@pytest.mark.parametrize("add", [False, True])
def test_rows_get_their_own_adapters_products_whatever_their_neighbours_have(add: bool) -> None:
    from tinkex.engine.kernels import row_adapters as kernel

    widths, inputs, rows = (64, 32), 700, 23
    ranks = ((16, 32), (0, 16), (48, 48))
    factors = [
        (random(inputs, sum(pair), seed=i), random(sum(pair), sum(widths), seed=9 + i))
        for i, pair in enumerate(ranks)
    ]
    entries = [
        [a.data_ptr(), b.data_ptr(), sum(pair), 0, pair[0], pair[0], pair[1], *[0] * 6]
        for (a, b), pair in zip(factors, ranks, strict=True)
    ]
    segments = [(0, 16, 0), (16, 1, 0), (17, 2, 1), (20, 3, 2), (0, 0, 0)]
    table = torch.zeros(len(segments), 2, kernel.FIELDS, dtype=torch.int64)
    for place, (_, _, owner) in enumerate(segments):
        table[place, 1] = torch.tensor(entries[owner])
    cut = torch.tensor(segments, dtype=torch.int32).T.contiguous()[:2].to(DEVICE)
    x, y = random(rows, inputs, seed=20), random(rows, sum(widths), seed=21)
    wanted = y.clone()
    for first, count, owner in segments:
        part, (a, b) = slice(first, first + count), factors[owner]
        split = ranks[owner][0]
        thin = x[part] @ a
        made = torch.cat(
            [thin[:, :split] @ b[:split, :64], thin[:, split:] @ b[split:, 64:]], dim=1
        )
        wanted[part] = made + wanted[part] if add else made
    counts = kernel.counters(len(segments), DEVICE)
    thin = kernel.shrink(x, 96, counts, 1, table.to(DEVICE), cut)
    kernel.expand(y, thin, 1, table.to(DEVICE), cut, widths, 64, add)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-3)


@here
@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize(("width", "inputs"), [(48, 320), (96, 512)])
@pytest.mark.parametrize("gated", [False, True])
def test_products_of_few_rows_add_and_gate_what_they_find(
    rows: int, width: int, inputs: int, gated: bool
) -> None:
    from tinkex.engine.kernels import few_rows as kernel

    outputs = width * (2 if gated else 1)
    # On a card tiles of float32 do not fit into shared memory, and a decode step has none.
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    x, weight = random(rows, inputs, seed=1).to(dtype), random(outputs, inputs, seed=2).to(dtype)
    bias, plus = random(outputs, seed=3).to(dtype), random(rows, outputs, seed=4).to(dtype)
    wanted = x.float() @ weight.float().T + bias + plus
    if gated:
        wanted = torch.nn.functional.silu(wanted[:, :width]) * wanted[:, width:]
    found = kernel.product(x, weight, bias, plus, gated=gated, dtype=torch.float32)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def pages_of(lengths: list[int], window: int | None) -> Pages:
    from tinkex.engine.kernels.token_attention import Pages

    width = -(-max(lengths) // PAGE)
    numbers = np.random.default_rng(0).permutation(len(lengths) * width).reshape(-1, width)
    places = [
        int(pages[(n - 1) // PAGE]) * PAGE + (n - 1) % PAGE
        for pages, n in zip(numbers, lengths, strict=True)
    ]
    return Pages(
        random(len(lengths) * width * PAGE, 2, KV_HEADS, SIZE, seed=7),
        torch.tensor(places, dtype=torch.int32, device=DEVICE),
        torch.from_numpy(np.ascontiguousarray(numbers.T).astype(np.int32)).to(DEVICE),
        torch.tensor([n - 1 for n in lengths], dtype=torch.int32, device=DEVICE),
        PAGE,
        window,
    )
