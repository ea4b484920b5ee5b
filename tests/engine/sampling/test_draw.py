"""Draws follow the model's distribution, keep to top_k and top_p, and depend on their key alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.sampling import DEVICE
from tinkex.engine.sampling.cpu_decode.draw import CpuDraw
from tinkex.engine.sampling.draw import ALTERNATIVE, SAMPLE, Drawer, Key, Rule, draw_key

VOCAB = 40


def logits_of(seed: int, vocab: int = VOCAB, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * scale


def drawn(logits: torch.Tensor, rule: Rule, count: int, seed: int = 5) -> NDArray[np.int64]:
    keys = [draw_key(seed, SAMPLE, 0, position) for position in range(count)]
    drawer = Drawer(len(logits), torch.device(DEVICE))
    rows = logits.to(DEVICE).expand(count, -1)
    return drawer.draw(rows, [rule] * count, keys).cpu().numpy()


def chi_square_fits(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> bool:
    """Within five standard deviations of a chi-square with this many cells."""
    big = expected >= 5
    cells = np.append(counts[big], counts[~big].sum())
    wanted = np.append(expected[big], max(expected[~big].sum(), 1e-9))
    if wanted[-1] < 5:
        cells, wanted = cells[:-1], wanted[:-1]
    statistic = float(((cells - wanted) ** 2 / wanted).sum())
    freedom = len(cells) - 1
    return statistic < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_frequencies_follow_the_tempered_distribution(temperature: float) -> None:
    logits = logits_of(1)
    ids = drawn(logits, Rule(temperature, -1, 1.0), 40_000)
    wanted = torch.softmax(logits.double() / temperature, -1).numpy() * len(ids)
    assert chi_square_fits(np.bincount(ids, minlength=VOCAB), wanted)


def test_neighbouring_draws_are_independent() -> None:
    logits = logits_of(2, vocab=6, scale=1.0)
    ids = drawn(logits, Rule(1.0, -1, 1.0), 60_000)
    pairs = np.bincount(ids[0::2] * 6 + ids[1::2], minlength=36)
    one = torch.softmax(logits.double(), -1).numpy()
    assert chi_square_fits(pairs, np.outer(one, one).reshape(-1) * (len(ids) // 2))


def test_temperature_zero_and_top_k_one_take_the_likeliest() -> None:
    logits = logits_of(3)
    best = int(logits.argmax())
    assert set(drawn(logits, Rule(0.0, -1, 1.0), 50)) == {best}
    assert set(drawn(logits, Rule(1.5, 1, 1.0), 50)) == {best}


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(5, 1.0), (-1, 0.8), (7, 0.6), (-1, 1e-9), (VOCAB + 3, 0.999)]
)
def test_the_support_is_exactly_what_top_k_and_top_p_leave(top_k: int, top_p: float) -> None:
    logits, heat = logits_of(4, scale=1.0), 1.3
    order = torch.argsort(logits, descending=True)
    kept = order[: top_k if top_k > 0 else VOCAB]
    mass = torch.softmax(logits[kept].double() / heat, -1)
    before = mass.cumsum(-1) - mass
    support = kept[before < top_p]
    ids = drawn(logits, Rule(heat, top_k, top_p), 20_000)
    assert set(ids.tolist()) == set(support.tolist())
    wanted = np.zeros(VOCAB)
    share = torch.softmax(logits[support].double() / heat, -1).numpy()
    wanted[support.numpy()] = share * len(ids)
    if len(support) > 1:
        assert chi_square_fits(np.bincount(ids, minlength=VOCAB), wanted)


def test_top_p_looks_past_its_first_candidates_when_the_distribution_is_flat() -> None:
    logits = torch.arange(3000).flip(0) * -1e-4
    ids = drawn(logits, Rule(1.0, -1, 0.9), 4000)
    mass = torch.softmax(logits.double(), -1).sort(descending=True).values
    size = int(((mass.cumsum(-1) - mass) < 0.9).sum())
    assert size > 2048
    assert ids.min() >= 3000 - size
    assert len(set(ids.tolist())) > 1800


def test_a_row_is_drawn_the_same_in_any_company() -> None:
    drawer = Drawer(VOCAB, torch.device(DEVICE))
    rows = torch.stack([logits_of(seed) for seed in range(9)]).to(DEVICE)
    rules = [Rule(1.0, -1, 1.0), Rule(0.0, -1, 1.0), Rule(0.7, 5, 0.9)] * 3
    keys = [draw_key(seed, SAMPLE, seed, 7) for seed in range(9)]
    together = drawer.draw(rows, rules, keys).tolist()
    alone = [
        drawer.draw(rows[i : i + 1], rules[i : i + 1], keys[i : i + 1]).item() for i in range(9)
    ]
    assert together == alone


def test_every_part_of_a_key_matters() -> None:
    keys = {
        draw_key(seed, stream, index, position)
        for seed in (0, 1, 2**63, -1)
        for stream in (SAMPLE, ALTERNATIVE)
        for index in (0, 1, 2)
        for position in (0, 1, 2)
    }
    assert len(keys) == 4 * 2 * 3 * 3


def key_that_ends_in_ones(drawer: Drawer, column: int) -> Key:
    """A key whose number for this column has all bits set: the way of `noise`, backwards."""
    first = int(drawer.ids[column]) * 0x7FEB352D & 0xFFFFFFFF
    ones = 0xFFFFFFFF ^ (0xFFFFFFFF >> 16)
    high = ones * pow(0x846CA68B, -1, 2**32) - (first ^ (first >> 15)) & 0xFFFFFFFF
    return 0, high - 2**32 if high >= 2**31 else high


def test_no_number_is_without_end() -> None:
    """One in 2^24 was: with 49,152 tokens a draw in 341 gave one that had nothing to do with the
    logits, under a mask one that was not allowed."""
    drawer, numpy = Drawer(VOCAB, torch.device("cpu")), CpuDraw(VOCAB)
    for column in (0, 7, VOCAB - 1):
        key = key_that_ends_in_ones(drawer, column)
        noise = drawer.noise([key])
        assert int(noise.argmax()) == column
        assert bool(noise.isfinite().all())
        assert np.allclose(numpy._noise([key]), noise.numpy(), atol=1e-5)
        logits = torch.full((1, VOCAB), -torch.inf)
        logits[0, 3] = 0.0
        assert drawer.draw(logits, [Rule(1.0, -1, 1.0)], [key]).tolist() == [3]
