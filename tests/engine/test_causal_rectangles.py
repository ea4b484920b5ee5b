"""Attention of rectangles is that of each sequence alone, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.training.attention import PackedAttention

HEADS, KV_HEADS, SIZE = 4, 2, 8


@pytest.mark.parametrize("lengths", [(5,), (1, 7, 7, 7, 30), (9, 3, 9, 3, 1)])
def test_rectangles_attend_as_each_sequence_alone(lengths: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    packed = torch.randn(sum(lengths), HEADS + 2 * KV_HEADS, SIZE, generator=draw)
    grad = torch.randn(sum(lengths), HEADS, SIZE, generator=draw)
    attend = PackedAttention(lengths, [None], torch.device("cpu"))
    found, back = _both(packed, grad, lambda q, k, v: attend(0, q, k, v))
    wanted, wanted_back = _both(packed, grad, lambda q, k, v: _one_by_one(q, k, v, lengths))
    assert torch.allclose(found, wanted, atol=1e-6)
    assert torch.allclose(back, wanted_back, atol=1e-6)


def test_a_sequences_bits_are_its_own_in_any_rectangle() -> None:
    packed = torch.randn(3 * 33, HEADS + 2 * KV_HEADS, SIZE)
    together = PackedAttention((33, 33, 33), [None], torch.device("cpu"))
    alone = PackedAttention((33,), [None], torch.device("cpu"))
    whole, back = _both(packed, packed[:, :HEADS], lambda q, k, v: together(0, q, k, v))
    own = packed[33:66]
    found, own_back = _both(own, own[:, :HEADS], lambda q, k, v: alone(0, q, k, v))
    assert torch.equal(found, whole[33:66])
    assert torch.equal(own_back, back[33:66])


def _both(
    packed: Tensor, grad: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """What comes out, and the gradient of what goes in."""
    leaf = packed.clone().requires_grad_()
    out = attend(*leaf.split_with_sizes([HEADS, KV_HEADS, KV_HEADS], dim=1))
    (back,) = torch.autograd.grad(out, leaf, grad)
    return out.detach(), back


def _one_by_one(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...]) -> Tensor:
    repeat = HEADS // KV_HEADS
    k, v = (x.repeat_interleave(repeat, dim=1) for x in (k, v))
    heads = [x.transpose(0, 1).split_with_sizes(lengths, dim=1) for x in (q, k, v)]
    parts = zip(*heads, strict=True)
    mixed = [F.scaled_dot_product_attention(*part, is_causal=True) for part in parts]
    return torch.cat(mixed, dim=1).transpose(0, 1)
