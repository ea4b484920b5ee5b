"""The sampler's attention kernels compute what `PagedAttention` computes on a CPU.

On a machine without a GPU `test_interpreted.py` runs them.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from support.interpreted import DEVICE, here

PAGE = 16


@here
@pytest.mark.parametrize(
    ("window", "splits", "sunk"),
    [(None, 1, False), (None, 4, True), (7, 1, True), (7, 4, False), (40, 1, False), (40, 4, True)],
)
def test_single_tokens_see_their_sequences(
    window: int | None, splits: int, sunk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinkex.engine.kernels import paged_attention as paged_kernel

    monkeypatch.setattr(paged_kernel, "splits_for", lambda programs: splits)
    monkeypatch.setattr(paged_kernel, "MIN_SHARE", 64)
    lengths = [1, 16, 17, 63, 64, 65, 250]
    tokens, pages = cache(lengths)
    q = random(len(lengths), 6, 24, seed=1)
    table = torch.from_numpy(np.stack(pages, axis=1).astype(np.int32)).to(DEVICE)
    positions = torch.tensor([n - 1 for n in lengths], dtype=torch.int32, device=DEVICE)
    sinks = random(6, seed=9) * 2 if sunk else None
    found = paged_kernel.attend(q, tokens, table, positions, PAGE, window, sinks)
    for row, length in enumerate(lengths):
        wanted = expected(q[row : row + 1], tokens, pages[row], length - 1, window, sinks)
        torch.testing.assert_close(found[row : row + 1], wanted, rtol=1e-4, atol=1e-5)


@here
@pytest.mark.parametrize(("window", "sunk"), [(None, False), (None, True), (7, True), (100, False)])
def test_chunks_see_what_lies_before_them(window: int | None, sunk: bool) -> None:
    from tinkex.engine.kernels import chunk_attention as chunk_kernel

    chunks = [(0, 2), (0, 65), (63, 64), (64, 3), (190, 65)]  # cached, new
    tokens, pages = cache([start + count for start, count in chunks])
    total = sum(count for _, count in chunks)
    fused = random(total, 6 + 4, 24, seed=2)
    q = fused[:, :6]  # as it comes from a fused product: rows are further apart than they are long
    rows = np.cumsum([0, *(count for _, count in chunks)])
    cut = chunk_kernel.tiles(
        [(int(rows[i]), count, start, i) for i, (start, count) in enumerate(chunks)]
    )
    table = torch.from_numpy(np.stack(pages).astype(np.int32)).to(DEVICE)
    out = torch.full((total, 6, 24), torch.nan, device=DEVICE)
    sinks = random(6, seed=9) * 2 if sunk else None
    tiles = torch.from_numpy(cut).to(DEVICE)
    chunk_kernel.attend(q, tokens, table, tiles, out, PAGE, window, sinks)
    for i, (start, count) in enumerate(chunks):
        part = slice(int(rows[i]), int(rows[i]) + count)
        wanted = expected(q[part], tokens, pages[i], start, window, sinks)
        torch.testing.assert_close(out[part], wanted, rtol=1e-4, atol=1e-5)


@here
def test_keys_and_values_are_written_where_they_belong() -> None:
    from tinkex.engine.kernels import paged_attention as paged_kernel

    tokens = torch.zeros(64, 2, 2, 24, device=DEVICE)
    k, v = random(3, 2, 24, seed=3), random(3, 2, 24, seed=4)
    places = torch.tensor([40, 3, 17], device=DEVICE)
    paged_kernel.write(tokens, places, k, v)
    assert torch.equal(tokens[places, 0], k)
    assert torch.equal(tokens[places, 1], v)
    assert int((tokens != 0).any(-1).sum()) == 3 * 2 * 2


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def cache(lengths: list[int]) -> tuple[Tensor, list[np.ndarray]]:
    """A layer's [places, 2, 2 heads, 24] and each sequence's pages, scattered over it."""
    width = -(-max(lengths) // PAGE)
    numbers = np.random.default_rng(0).permutation(len(lengths) * width) + 1
    pages = list(numbers.reshape(len(lengths), width))
    return random((len(lengths) * width + 1) * PAGE, 2, 2, 24, seed=5), pages


def expected(
    q: Tensor, tokens: Tensor, pages: np.ndarray, first: int, window: int | None,
    sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Plain attention in float64 of queries at positions `first` … over everything before them, a
    head's sink being one more logit."""
    places = torch.from_numpy((pages[:, None] * PAGE + np.arange(PAGE)).ravel()).to(DEVICE)
    kv = tokens[places].double()
    group = q.shape[1] // kv.shape[2]
    k, v = (kv[:, i].repeat_interleave(group, dim=1) for i in (0, 1))
    positions = torch.arange(first, first + len(q), device=DEVICE)
    distance = positions[:, None] - torch.arange(len(places), device=DEVICE)
    visible = distance >= 0
    if window is not None:
        visible &= distance < window
    score = torch.einsum("qhd,khd->hqk", q.double(), k) * q.shape[-1] ** -0.5
    score = score.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        sink = sinks.double()[:, None, None].expand(-1, len(q), 1)
        score = torch.cat([score, sink], dim=-1)
    weight = score.softmax(-1)[..., : len(places)]
    return torch.einsum("hqk,khd->qhd", weight, v).float()
