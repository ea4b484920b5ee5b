"""Packs sequences of many calls end to end and cuts them into micro-batches by tokens.

Works on lengths alone; it never sees a token. The order depends only on the order of the calls and
the lengths. So the same commands are packed the same way again, and a call is cut the same way
whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Piece:
    """One sequence: which call and datum it is, and its number of tokens."""

    call: int
    datum: int
    length: int


MicroBatch = tuple[Piece, ...]


SOLO_TOKENS = 16
"""A call's share with fewer tokens is a micro-batch of its own. Matrix libraries sum the rows of
such a small product in another order than those of a larger one, and the rest of a batch must not
change a call's bits."""


def pack(pieces: Iterable[Piece], token_budget: int) -> list[MicroBatch]:
    """Micro-batches of at most `token_budget` tokens, pieces sorted by call, then by length.

    Each call is cut on its own first, then the shares of several calls are laid side by side: how
    a call is cut never depends on the others. Equal lengths of a call are neighbours, so that
    attention can take them as one rectangle. A piece longer than the budget goes alone.
    """
    ordered = sorted(pieces, key=lambda piece: (piece.call, piece.length, piece.datum))
    shares = [
        share
        for _, own in groupby(ordered, key=lambda piece: piece.call)
        for share in _join(([piece] for piece in own), token_budget)
    ]
    solo = [share for share in shares if _tokens(share) < SOLO_TOKENS]
    joint = _join((share for share in shares if _tokens(share) >= SOLO_TOKENS), token_budget)
    return [tuple(batch) for batch in [*joint, *solo]]


def _join(parts: Iterable[Sequence[Piece]], token_budget: int) -> list[list[Piece]]:
    """Neighbours joined while they stay within the budget."""
    joined: list[list[Piece]] = []
    room = 0
    for part in parts:
        tokens = _tokens(part)
        if not joined or tokens > room:
            joined.append([])
            room = token_budget
        joined[-1].extend(part)
        room -= tokens
    return joined


def _tokens(pieces: Iterable[Piece]) -> int:
    return sum(piece.length for piece in pieces)


def rectangles(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of equal neighbours as (count, length)."""
    found: list[tuple[int, int]] = []
    for length in lengths:
        if found and found[-1][1] == length:
            found[-1] = (found[-1][0] + 1, length)
        else:
            found.append((1, length))
    return found
