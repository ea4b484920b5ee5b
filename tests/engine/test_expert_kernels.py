"""Kernels of mixtures of experts: adapters by table, the gate between products, sums by token.

On a machine without a GPU `test_interpreted.py` runs them.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.hf_models import packed_experts
from support.interpreted import DEVICE, INTERPRETED, here
from tinkex.engine.adapters.layout import Factors
from tinkex.engine.adapters.packed import PackedLora, Segment
from tinkex.engine.model.blocks.expert_ops import _clamped
from tinkex.engine.model.matrices.packed_experts import PackedExperts
from tinkex.engine.model.ops import swiglu
from tinkex.engine.model.routes import Routes
from tinkex.engine.model.slots import PlacedSlot, Slot

EXPERTS, ACTIVE, HIDDEN, INNER, TOKENS = 5, 2, 40, 24, 150
BOUNDS, RANKS = [(0, 3), (3, 80), (80, 140)], (3, 16, 8)
SLOTS = {
    "up": Slot("mlp", HIDDEN, (("w1", INNER), ("w3", INNER)), experts_b=EXPERTS),
    "down": Slot("mlp", INNER, (("w2", HIDDEN),), experts_a=EXPERTS),
}
PLACE = {0: 0, 1: 1}


def _gated(gate_up: Tensor, limit: float | None) -> Tensor:
    return swiglu(gate_up) if limit is None else _clamped(gate_up, limit)


@here
@pytest.mark.parametrize("slot", list(SLOTS))
def test_mixed_ranks_over_experts_in_one_launch_are_what_each_gets_alone(slot: str) -> None:
    """The last ten tokens have no adapter, and the adapter of the first three is not in `down`."""
    from tinkex.engine.adapters.grouped import LoraTable, Shape, TableLora

    routes = some_routes()
    rows = slot == "down"
    x = random(TOKENS * ACTIVE if rows else TOKENS, INNER if rows else HIDDEN, seed=1)
    weight = random(EXPERTS, *((HIDDEN, INNER) if rows else (2 * INNER, HIDDEN)), seed=2) / 6
    alone, together = segments(), segments()
    placed = {name: PlacedSlot(one, (0, 1)) for name, one in SLOTS.items()}
    table = LoraTable(placed, TOKENS, 4, DEVICE)
    table.fill(together)
    found = both_ways(
        TableLora(table, together, Shape.of(together), DEVICE), slot, x, weight, routes
    )
    wanted = both_ways(PackedLora(alone, DEVICE), slot, x, weight, routes)
    for one, other in zip(found, wanted, strict=True):
        close(one, other)
    for mine, theirs in zip(together, alone, strict=True):
        assert mine.grads is not None
        assert theirs.grads is not None
        for name in mine.factors:
            close(mine.grads[name].a, theirs.grads[name].a)
            for one, other in zip(mine.grads[name].b, theirs.grads[name].b, strict=True):
                close(one, other)


@here
@pytest.mark.parametrize(("limit", "inner"), [(None, 40), (0.9, 1100)])
def test_the_gate_is_that_of_the_cpu_forwards_and_backwards(
    limit: float | None, inner: int
) -> None:
    from tinkex.engine.kernels.mixtures import experts as kernel

    gate_up, share = random(13, 2 * inner, seed=1), random(13, seed=2).sigmoid()
    bias = None if limit is None else random(EXPERTS, 2 * inner, seed=3)
    experts = torch.arange(13, device=DEVICE) % EXPERTS
    exact, weights = gate_up.double().requires_grad_(), share.double().requires_grad_()
    biased = exact if bias is None else exact + bias.double()[experts]
    wanted = _gated(biased, limit) * weights[:, None]
    close(kernel.gate(gate_up, share, bias, experts, limit), wanted)
    grad = random(13, inner, seed=4)
    grads = torch.autograd.grad(wanted, (exact, weights), grad.double())
    found = kernel.gate_backward(grad, gate_up, share, bias, experts, limit)
    for one, other in zip(found, grads, strict=True):
        close(one, other)


@here
def test_rows_are_summed_by_token() -> None:
    from tinkex.engine.kernels.mixtures import experts as kernel

    rows, places = random(12, 50, seed=1), torch.randperm(12, device=DEVICE).view(4, 3)
    close(kernel.combine(rows, places), rows.double()[places].sum(1))


@here
@pytest.mark.parametrize(
    ("tokens", "by"), [(1, "list"), (9, "list"), (40, "list"), (1, "pair"), (3, "pair")]
)
@pytest.mark.parametrize("oss", [False, True])
def test_few_tokens_get_what_sorted_ones_get(tokens: int, by: str, oss: bool) -> None:
    from tinkex.engine.kernels.mixtures import few_experts, pair_experts

    router, x = random(EXPERTS, HIDDEN, seed=1), random(tokens, HIDDEN, seed=2)
    up, down = random(EXPERTS, 2 * INNER, HIDDEN, seed=3), random(EXPERTS, HIDDEN, INNER, seed=4)
    biases = (random(EXPERTS, 2 * INNER, seed=5), random(EXPERTS, HIDDEN, seed=6)) if oss else None
    onto, added = random(tokens, HIDDEN, seed=7), random(tokens * ACTIVE, 2 * INNER, seed=8)
    limit = 2.0 if oss else None
    logits, alone = x @ router.T, by == "pair"
    routes = few_experts.route(logits, ACTIVE, renormalise=oss)
    if alone:
        for _ in range(2):  # what counts scores is zero again after each
            routes = pair_experts.route(x, router, None, ACTIVE, renormalise=oss)
    chosen = (logits if oss else logits.softmax(-1)).topk(ACTIVE)
    close(routes.weights, chosen.values.softmax(-1) if oss else chosen.values)
    assert torch.equal(routes.experts.long(), chosen.indices)
    kernel = pair_experts if alone else few_experts
    inner = kernel.up(x, up, None if biases is None else biases[0], added, routes, limit)
    shared, gate = random(tokens, HIDDEN, seed=9), random(tokens, 1, seed=10)
    second = None if biases is None else biases[1]
    found = kernel.down_onto(onto, inner, down, second, routes, shared, gate)

    wanted = onto.double() + shared.double() * gate.double().sigmoid()
    for token in range(tokens):
        for choice, expert in enumerate(chosen.indices[token].tolist()):
            weight = routes.weights[token, choice].double()
            both = up[expert].double() @ x[token].double() + added[token * ACTIVE + choice].double()
            both = both if biases is None else both + biases[0][expert].double()
            wanted[token] += weight * (down[expert].double() @ _gated(both[None], limit)[0])
            if biases is not None:
                wanted[token] += weight * biases[1][expert].double()
    close(found, wanted)


@here
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_few_tokens_get_from_packed_experts_what_widened_ones_give(
    tokens: int, dtype: torch.dtype
) -> None:
    """Of every pattern of four bits, and of the smallest and largest scales: the same bits.

    On a card float32 is added up in another order where the weights are packed.
    """
    from tinkex.engine.kernels.mixtures import few_experts, pair_experts

    hidden, inner = 192, 96
    router, x = random(EXPERTS, hidden, seed=1), random(tokens, hidden, seed=2).to(dtype)
    onto = random(tokens, hidden, seed=7).to(dtype)
    up, down = packed(2 * inner, hidden, dtype), packed(hidden, inner, dtype)
    for kernel in (few_experts, pair_experts):
        routes = few_experts.route(x.float() @ router.T, ACTIVE, renormalise=True)
        for first, second in ((up, down), (up.widened(), down.widened())):
            rows = kernel.up(x, first, None, None, routes, 7.0)
            found = kernel.down_onto(onto, rows, second, None, routes, None, None)
            if first is up:
                ours = rows, found
        near = 1e-5 if dtype == torch.float32 and not INTERPRETED else 0.0
        for one, other in zip(ours, (rows, found), strict=True):
            torch.testing.assert_close(one, other, rtol=near, atol=near * float(other.abs().max()))
        assert bool(ours[1].isfinite().all())


@here
def test_every_byte_and_scale_is_widened_exactly_in_a_kernel() -> None:
    """One expert of rows of 32 with a single one in each token: what comes back is the numbers."""
    from tinkex.engine.kernels.mixtures import few_experts

    scales = torch.arange(253, dtype=torch.uint8, device=DEVICE)
    blocks = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(16, 16)
    stack = PackedExperts(
        blocks.repeat(16, 1)[None, :253, None].contiguous(), scales.view(1, 253, 1), torch.float32
    )
    x = torch.eye(32, device=DEVICE)
    routes = few_experts.route(torch.zeros(32, 1, device=DEVICE), 1, renormalise=True)
    found = few_experts.down(x, stack, None, routes)
    assert torch.equal(found, stack.widened()[0].T)


def packed(rows: int, columns: int, dtype: torch.dtype) -> PackedExperts:
    blocks, scales = packed_experts(EXPERTS, rows, columns)
    return PackedExperts(blocks.to(DEVICE), scales.to(DEVICE), dtype)


@here
def test_each_pair_has_its_own_low_rank_factor() -> None:
    from tinkex.engine.kernels import row_adapters
    from tinkex.engine.kernels.mixtures import few_experts as kernel
    from tinkex.engine.kernels.mixtures import pair_adapters

    tokens, rank, owners = 6, 16, [0, 2, 1, 1, 0, 2]
    routes = kernel.route(random(tokens, EXPERTS, seed=1), ACTIVE, renormalise=True)
    thin, rows = random(tokens, 2 * rank, seed=2), random(tokens * ACTIVE, INNER, seed=3)
    b = [[random(EXPERTS, INNER, rank, seed=10 + 2 * i + m) for m in range(2)] for i in range(2)]
    a = [random(EXPERTS, rank, INNER, seed=20 + i) for i in range(2)]
    table = torch.zeros(2, 3, row_adapters.FIELDS, dtype=torch.int64)
    for place in range(2):
        table[place, 1, 3:7] = torch.tensor([0, rank, rank, rank])
        own = row_adapters.EXPERT_FIELD
        table[place, 1, own : own + 2] = torch.tensor([one.data_ptr() for one in b[place]])
        table[place, 2, 4], table[place, 2, own] = rank, a[place].data_ptr()
    where = torch.tensor(owners, dtype=torch.int32, device=DEVICE)
    table = table.to(DEVICE)
    wide = pair_adapters.expand(thin, routes, where, 1, table, INNER, rank)
    narrow = pair_adapters.shrink(rows, routes, where, 2, table, rank)
    summed = torch.zeros(tokens, rank, device=DEVICE)
    for pair in range(tokens * ACTIVE):
        token, expert = pair // ACTIVE, int(routes.experts.flatten()[pair])
        wanted = torch.zeros(2 * INNER, device=DEVICE)
        if owners[token]:
            gate, up = (one[expert] for one in b[owners[token] - 1])
            wanted = torch.cat([gate @ thin[token, :rank], up @ thin[token, rank:]])
            summed[token] += a[owners[token] - 1][expert] @ rows[pair]
        close(wide[pair], wanted)
    close(narrow, summed)


def some_routes() -> Routes:
    scores = random(TOKENS, EXPERTS, seed=9)
    scores[:, 3] = -10.0  # one expert gets nothing
    return Routes(scores.topk(ACTIVE).indices, EXPERTS)


def both_ways(
    lora: PackedLora, slot: str, x: Tensor, weight: Tensor, routes: Routes
) -> tuple[Tensor, Tensor]:
    given = x.clone().requires_grad_()
    made = lora.expand if slot == "up" else lora.contract
    y = made(1, slot, given, weight, routes)
    (grad,) = torch.autograd.grad(y, given, random(*y.shape, seed=5))
    return y.detach(), grad


def segments() -> list[Segment]:
    found = []
    for index, ((start, stop), rank) in enumerate(zip(BOUNDS, RANKS, strict=True)):
        names = [name for name in SLOTS if not (index == 0 and name == "down")]
        factors = {name: factors_of(SLOTS[name], rank, index) for name in names}
        grads = {
            name: Factors(torch.zeros_like(f.a), tuple(torch.zeros_like(b) for b in f.b), PLACE)
            for name, f in factors.items()
        }
        found.append(Segment(start, stop, 32 / rank, factors, grads))
    return found


def factors_of(slot: Slot, rank: int, seed: int) -> Factors:
    front_a = (2, slot.experts_a) if slot.experts_a else (2,)
    front_b = (2, slot.experts_b) if slot.experts_b else (2,)
    a = random(*front_a, len(slot.modules) * rank, slot.in_features, seed=10 + seed)
    b = tuple(random(*front_b, width, rank, seed=20 + seed) for _, width in slot.modules)
    return Factors(a, b, PLACE)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=2e-3)
