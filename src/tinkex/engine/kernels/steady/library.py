"""The vendor's library for products, where it was seen to find the bits of our own kernel.

A kernel of the library that does not cut the sum over the inputs adds up in the very order of
`product`, and is faster with many rows. Which kernel it takes follows from the sizes alone: so an
engine tries every size of matrix by the numbers of rows below as it starts, and a number of rows
that gave one other bit is never left to the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

SIZES = (32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)
"""Numbers of rows that are tried: those that steps of sampling and passes of training are rounded
up to. Other numbers are made of them."""

_LEAST = 512
"""Rows of a piece of a larger number; less is not worth a launch."""

_MOST_NUMBERS = 1 << 28
"""Of a result that is tried: no gigabytes for a head's."""

Key = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.dtype]

_trusted: dict[Key, frozenset[int]] = {}
"""Numbers of rows, by the matrix's shape and layout, its dtype and the result's."""


def learn(
    weight: Tensor, dtype: torch.dtype, own: Callable[[Tensor], Tensor], most_rows: int = SIZES[-1]
) -> None:
    """Compare the library with `own`, which multiplies rows by this matrix, bit by bit."""
    x = torch.randn(most_rows, weight.shape[1], device=weight.device).to(weight.dtype)
    sizes = (size for size in SIZES if size * len(weight) <= _MOST_NUMBERS and size <= most_rows)
    same = frozenset(size for size in sizes if _is_same(x[:size], weight, dtype, own))
    _trusted[_key(weight, dtype)] = same


def forget() -> None:
    """Leave nothing to the library from now on."""
    _trusted.clear()


def fill(out: Tensor, x: Tensor, weight: Tensor) -> int:
    """Write the first rows of x @ weight.T into `out`; returns how many: as many as can be."""
    sizes = _trusted.get(_key(weight, out.dtype))
    if not sizes or not x.is_contiguous():
        return 0
    done = 0
    for size in pieces(len(x), sizes):
        _multiply(x[done : done + size], weight, out[done : done + size])
        done += size
    return done


def pieces(rows: int, sizes: frozenset[int]) -> Iterator[int]:
    """Numbers of rows the library is asked for, one after another; the rest is too few."""
    if rows in sizes:
        yield rows
        return
    for size in sorted((size for size in sizes if size >= _LEAST), reverse=True):
        while rows >= size:
            yield size
            rows -= size


def _is_same(
    x: Tensor, weight: Tensor, dtype: torch.dtype, own: Callable[[Tensor], Tensor]
) -> bool:
    out = torch.full((len(x), len(weight)), torch.nan, dtype=dtype, device=x.device)
    _multiply(x, weight, out)
    return torch.equal(out, own(x))


def _multiply(x: Tensor, weight: Tensor, out: Tensor) -> None:
    if out.dtype == x.dtype:
        torch.mm(x, weight.T, out=out)
    else:
        torch.ops.aten.mm.dtype_out(x, weight.T, out.dtype, out=out)


def _key(weight: Tensor, dtype: torch.dtype) -> Key:
    return weight.shape, weight.stride(), weight.dtype, dtype
