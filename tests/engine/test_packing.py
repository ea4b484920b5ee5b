"""Packing covers every piece once, keeps calls together and stays within the budget."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.engine.training.attention import PackedAttention, sliding_mask
from tinkex.engine.training.packing import Piece, pack, rectangles

PIECES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), max_size=30).map(
    lambda found: [Piece(call, index, length) for index, (call, length) in enumerate(found)]
)


@given(PIECES, st.integers(1, 60))
def test_every_piece_is_packed_once_within_the_budget(pieces: list[Piece], budget: int) -> None:
    batches = pack(pieces, budget)
    packed = [piece for batch in batches for piece in batch]
    assert sorted(packed, key=lambda p: p.datum) == pieces
    for batch in batches:
        assert [piece.call for piece in batch] == sorted(piece.call for piece in batch)
        assert len(batch) == 1 or sum(piece.length for piece in batch) <= budget


@given(PIECES, st.integers(1, 60))
def test_a_call_is_cut_the_same_way_whoever_else_is_there(pieces: list[Piece], budget: int) -> None:
    together = pack(pieces, budget)
    for call in {piece.call for piece in pieces}:
        cuts = [tuple(p for p in batch if p.call == call) for batch in together]
        alone = pack([piece for piece in pieces if piece.call == call], budget)
        assert [cut for cut in cuts if cut] == alone


def test_neighbours_of_equal_length_are_one_rectangle() -> None:
    assert rectangles([3, 3, 5, 3]) == [(2, 3), (1, 5), (1, 3)]


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.sampled_from([None, 1, 4]))
def test_packed_attention_is_attention_of_each_sequence(
    lengths: list[int], window: int | None
) -> None:
    total, generator = sum(lengths), torch.Generator().manual_seed(0)
    q = torch.randn(total, 4, 8, generator=generator, requires_grad=True)
    k, v = (torch.randn(total, 2, 8, generator=generator) for _ in range(2))
    out = PackedAttention(lengths, [window], torch.device("cpu"))(0, q, k, v)
    expected, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        keys, values = (x[part].repeat_interleave(2, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[part], keys) / 8**0.5
        mask = sliding_mask(length, window or length, q.device)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        expected.append(torch.einsum("hqk,khd->qhd", weights, values))
        start += length
    plain = torch.cat(expected)
    torch.testing.assert_close(out, plain, rtol=1e-4, atol=1e-5)
    (own,) = torch.autograd.grad(out.square().sum(), q, retain_graph=True)
    (theirs,) = torch.autograd.grad(plain.square().sum(), q)
    torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-4)
