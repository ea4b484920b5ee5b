"""Adapters of any ranks and modules share launches and get what each gets alone.

On a machine without a GPU `test_interpreted.py` runs them.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.interpreted import DEVICE, INTERPRETED, here
from tinkex.engine.adapters.layout import Factors
from tinkex.engine.adapters.packed import Segment
from tinkex.engine.kernels import lora_cuts
from tinkex.engine.model.slots import PlacedSlot, Slot

HIDDEN, LAYERS = 200, 2
WIDTHS = {"qkv": (136, 40, 40), "o": (200,), "gate_up": (136, 136), "qkvz": (136, 40, 72, 136)}
SLOTS = {
    name: PlacedSlot(Slot("mlp", HIDDEN, tuple((f"m{i}", w) for i, w in enumerate(widths))), (0, 1))
    for name, widths in WIDTHS.items()
}
PLACE = {0: 0, 1: 1}
BOUNDS = [(0, 5), (5, 70), (70, 71), (71, 135)]
"""Less than the 64 rows of a tile, one more, one alone, and as many."""
MIXED, ALIGNED = (3, 16, 1, 32), (8, 24, 16, 32)
ALL = list(itertools.product(WIDTHS, (1, 3), (MIXED, ALIGNED)))
FEW = [("qkv", 3, MIXED), ("o", 3, ALIGNED), ("gate_up", 1, ALIGNED), ("qkvz", 1, MIXED)]
CASES = FEW if INTERPRETED else ALL
"""Interpreted, which takes seconds each: every slot once, and every slicing with all ranks."""


@here
@pytest.mark.parametrize(("slot", "slices", "ranks"), CASES)
def test_mixed_ranks_in_one_launch_are_what_each_adapter_gets_alone(
    slot: str, slices: int, ranks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinkex.engine.adapters.grouped import LoraTable, Shape, TableLora

    monkeypatch.setattr(lora_cuts, "slices", lambda programs, inside: slices)
    rows, width = BOUNDS[-1][1] + 3, sum(WIDTHS[slot])  # the last three rows have no adapter
    weight = random(width, HIDDEN, seed=1) / HIDDEN**0.5
    x, dy = random(rows, HIDDEN, seed=2), random(rows, width, seed=3)
    alone, together = segments(ranks), segments(ranks)
    wanted_y, wanted_dx = expected(alone, slot, x, dy, weight)

    table = LoraTable(SLOTS, rows, 8, DEVICE)
    table.fill(together)
    lora = TableLora(table, together, Shape.of(together), DEVICE)
    given = x.clone().requires_grad_()
    y = lora.project(1, slot, given, weight, None)
    y.backward(dy)
    assert given.grad is not None
    close(y, wanted_y)
    close(given.grad, wanted_dx)
    for one, other in zip(alone, together, strict=True):
        assert one.grads is not None
        assert other.grads is not None
        for name in one.factors:
            close(other.grads[name].a, one.grads[name].a)
            for found, wanted in zip(other.grads[name].b, one.grads[name].b, strict=True):
                close(found, wanted)
    with torch.no_grad():
        close(lora.project(1, slot, x, weight, None), wanted_y)


def expected(
    parts: list[Segment], slot: str, x: Tensor, dy: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """By autograd over the plain formula; gradients are added to the segments'."""
    x = x.double().requires_grad_()
    y = F.linear(x, weight.double())
    leaves: list[tuple[Tensor, Tensor]] = []
    for segment in parts:
        factors = segment.factors.get(slot)
        if factors is None:
            continue
        assert segment.grads is not None
        rank, left = factors.b[0].shape[-1], 0
        a = factors.a[1].double().requires_grad_()
        leaves.append((a, segment.grads[slot].a[1]))
        for index, b in enumerate(factors.b):
            own = b[1].double().requires_grad_()
            leaves.append((own, segment.grads[slot].b[index][1]))
            thin = x[segment.start : segment.stop] @ a[index * rank : (index + 1) * rank].T
            added = segment.scaling * thin @ own.T
            y = y + F.pad(
                added,
                (left, y.shape[1] - left - added.shape[1], segment.start, len(x) - segment.stop),
            )
            left += added.shape[1]
    y.backward(dy.double())
    for leaf, total in leaves:
        assert leaf.grad is not None
        total += leaf.grad.float()
    assert x.grad is not None
    return y.detach().float(), x.grad.float()


def segments(ranks: tuple[int, ...]) -> list[Segment]:
    found = []
    for index, ((start, stop), rank) in enumerate(zip(BOUNDS, ranks, strict=True)):
        names = [name for name in WIDTHS if not (index == 1 and name == "o")]
        factors = {name: made(name, rank, index) for name in names}
        grads = {
            name: Factors(torch.zeros_like(f.a), tuple(torch.zeros_like(b) for b in f.b), PLACE)
            for name, f in factors.items()
        }
        found.append(Segment(start, stop, 32 / rank, factors, grads))
    return found


def made(slot: str, rank: int, seed: int) -> Factors:
    widths = WIDTHS[slot]
    a = random(LAYERS, len(widths) * rank, HIDDEN, seed=10 + seed)
    return Factors(a, tuple(random(LAYERS, w, rank, seed=20 + seed) for w in widths), PLACE)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-3)
