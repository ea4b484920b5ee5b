"""Triton kernels that draw one token per row, and its logprob, in one pass over the logits.

The same race as in `draw`, without top_k and top_p: the same numbers from the same keys, made where
they are used instead of as a matrix. A row may have a mask of the ids that take part; rows without
one never read it.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


def draw(
    logits: Tensor, ids: Tensor, keys: Tensor, heat: Tensor, masked: Tensor, masks: Tensor
) -> Tensor:
    """int32 [2, R]: each row's token, and the bits of its float32 logprob.

    `ids` are the drawer's scrambled ids, `keys` int32 [2, R], `heat` the bits of the float32
    temperatures, 0 for a row that takes the likeliest token. `masks` int32 [R, words] have a bit
    for every id; they hold for the rows where `masked` is not 0. Logprobs are without them.
    """
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, _BLOCK)
    found = torch.empty(4, rows, blocks, dtype=torch.float32, device=logits.device)
    which = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
    out = torch.empty(2, rows, dtype=torch.int32, device=logits.device)
    _race[rows, blocks](
        logits,
        ids,
        keys,
        heat,
        masked,
        masks,
        found,
        which,
        vocab,
        rows,
        keys.stride(0),
        masks.stride(0),
        BLOCK=_BLOCK,
    )
    _finish[(rows,)](found, which, out, rows, blocks, BLOCK=triton.next_power_of_2(blocks))
    return out


@triton.jit(do_not_specialize=["rows", "key_stride"])
def _race(
    logits,
    ids,
    keys,
    heat,
    masked,
    masks,
    found,
    which,
    vocab,
    rows,
    key_stride,
    mask_stride,
    BLOCK: tl.constexpr,
):
    row, block, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocab
    start = row.to(tl.int64) * vocab
    x = tl.load(logits + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
    warmth = tl.load(heat + row).to(tl.float32, bitcast=True)
    score = x
    if warmth > 0.0:
        low = tl.load(keys + row).to(tl.uint32, bitcast=True)
        high = tl.load(keys + key_stride + row).to(tl.uint32, bitcast=True)
        bits = tl.load(ids + columns, mask=inside, other=0).to(tl.uint32, bitcast=True) ^ low
        bits = bits * 0x7FEB352D
        bits = (bits ^ (bits >> 15)) + high
        bits = bits * 0x846CA68B
        bits = (bits ^ (bits >> 16)) & 0xFFFFFF
        bits = tl.minimum(bits.to(tl.int32), 0xFFFFFE)  # `HIGHEST` of sampling.draw
        uniform = (bits.to(tl.float32) + 0.5) * (1.0 / 16777216.0)
        score = x / warmth - tl.log(-tl.log(uniform))
        score = tl.where(inside, score, -float("inf"))
    if tl.load(masked + row) != 0:
        words = masks + row.to(tl.int64) * mask_stride + columns // 32
        bits = tl.load(words, mask=inside, other=0) >> (columns % 32)
        score = tl.where((bits & 1) != 0, score, -float("inf"))
    winner = tl.argmax(score, 0)
    at = row * blocks + block
    plane = rows * blocks
    highest = tl.max(x, 0)
    shifted = tl.where(x == -float("inf"), 0.0, tl.exp(x - highest))
    tl.store(found + at, tl.max(score, 0))
    tl.store(found + plane + at, tl.sum(tl.where(columns == block * BLOCK + winner, x, 0.0), 0))
    tl.store(found + 2 * plane + at, highest)
    tl.store(found + 3 * plane + at, tl.sum(shifted, 0))
    tl.store(which + at, block * BLOCK + winner)


@triton.jit(do_not_specialize=["rows"])
def _finish(
    found,
    which,
    out,
    rows,
    blocks,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < blocks
    place, plane = row * blocks + at, rows * blocks
    lowest = -float("inf")
    winner = tl.argmax(tl.load(found + place, mask=inside, other=lowest), 0)
    highest = tl.load(found + 2 * plane + place, mask=inside, other=lowest)
    sums = tl.load(found + 3 * plane + place, mask=inside, other=0.0)
    top = tl.max(highest, 0)
    shifted = tl.where(highest == lowest, 0.0, sums * tl.exp(highest - top))
    own = tl.load(found + plane + row * blocks + winner)
    logprob = own - top - tl.log(tl.sum(shifted, 0))
    tl.store(out + row, tl.load(which + row * blocks + winner))
    tl.store(out + rows + row, logprob.to(tl.int32, bitcast=True))
