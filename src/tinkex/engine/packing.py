"""Lays sequences of many calls end to end and cuts them into micro-batches by tokens.

Works on lengths alone; it never sees a token. The order is fixed by the order of the calls and the
lengths, so the same commands are packed the same way again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """One sequence: which call and datum it is, and its number of tokens."""

    call: int
    datum: int
    length: int


MicroBatch = tuple[Piece, ...]


def pack(pieces: Iterable[Piece], token_budget: int) -> list[MicroBatch]:
    """Micro-batches of at most `token_budget` tokens, pieces sorted by call, then by length.

    Equal lengths lie side by side, so that attention can take them as one rectangle. A piece
    longer than the budget is a micro-batch of its own.
    """
    ordered = sorted(pieces, key=lambda piece: (piece.call, piece.length, piece.datum))
    batches: list[list[Piece]] = []
    room = 0
    for piece in ordered:
        if not batches or piece.length > room:
            batches.append([])
            room = token_budget
        batches[-1].append(piece)
        room -= piece.length
    return [tuple(batch) for batch in batches]


def rectangles(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of equal neighbours as (count, length)."""
    found: list[tuple[int, int]] = []
    for length in lengths:
        if found and found[-1][1] == length:
            found[-1] = (found[-1][0] + 1, length)
        else:
            found.append((1, length))
    return found
