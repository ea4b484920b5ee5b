"""Draws of next tokens: which branch draws from which logits, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from tinkex.engine.model.decoder import Decoder
from tinkex.engine.sampling.controls import Changes, steered
from tinkex.engine.sampling.draw import Drawer
from tinkex.engine.sampling.request import Branch
from tinkex.engine.sampling.scheduling.chunks import Chunk

_TopK: TypeAlias = tuple[list[int], list[float]]
"""The likeliest ids at a token's place and their logprobs."""


@dataclass(slots=True, eq=False)
class Turn:
    """A draw of the token after `position`. The last tokens up to there may be `guesses` that no
    draw has confirmed yet."""

    branch: Branch
    position: int
    guesses: tuple[int, ...] = ()

    @property
    def guess(self) -> int | None:
        """The token at `position`, if that is a guess."""
        return self.guesses[-1] if self.guesses else None

    @property
    def changes(self) -> Changes:
        """How the request's controls change the logits of this draw."""
        return self.branch.changes(self.guesses)

    @property
    def place(self) -> int:
        """The index of the drawn token in the sample."""
        return self.position + 1 - len(self.branch.request.prompt)

    @property
    def due(self) -> bool:
        """Whether the branch goes on and has come to this draw, by way of the guess if any."""
        branch = self.branch
        if branch.reason is not None or branch.length != self.position + 1:
            return False
        return self.guess is None or branch.generated[-1] == self.guess


def turns_after(
    chunk: Chunk, branches: Iterable[Branch], offset: int
) -> Iterator[tuple[int, Turn]]:
    """The draws after a chunk whose position p is row offset + p, each with its row: those of the
    `branches` that draw after its own tokens, then those after its guesses."""
    last = chunk.known - 1
    for branch in branches:
        yield offset + last, Turn(branch, last)
    for count in range(1, len(chunk.guesses) + 1):
        yield offset + last + count, Turn(chunk.branch, last + count, chunk.guesses[:count])


def confirmed(turns: Iterable[Turn], drawn: Iterable[int]) -> list[int]:
    """Which of these draws count, judged by the draws alone: a guess only right after the draw that
    confirms it. Turns of one branch are neighbours, in order."""
    rows: list[int] = []
    before: int | None = None
    for row, (turn, token) in enumerate(zip(turns, drawn, strict=True)):
        holds = turn.guess is None or turn.guess == before
        before = token if holds else None
        if holds:
            rows.append(row)
    return rows


def drawer_for(decoder: Decoder) -> Drawer:
    vocab, device = decoder.config.vocab_size, decoder.device
    if not decoder.steady:
        return Drawer(vocab, device)
    from tinkex.engine.sampling.steady.draw import SteadyDrawer

    return SteadyDrawer(vocab, device)


def drawn(
    drawer: Drawer, turns: Sequence[Turn], logits: Tensor
) -> Iterator[tuple[Turn, int, float, _TopK | None]]:
    """The result of each of these draws from its row: the token, its logprob, the likeliest if
    asked for. Draws after refused guesses are left out."""
    rules = [turn.branch.request.rule for turn in turns]
    any_steered = any(turn.branch.steered for turn in turns)
    scores = steered(logits, [turn.changes for turn in turns]) if any_steered else logits
    ids = drawer.draw(scores, rules, [turn.branch.draw_key(turn.place) for turn in turns])
    if any(turn.guesses for turn in turns):
        rows = confirmed(turns, ids.tolist())
        turns, ids, logits = [turns[row] for row in rows], ids[rows], logits[rows]
    scored = drawer.scored(logits)
    logprobs = scored.gather(1, ids[:, None])[:, 0].tolist()
    yield from zip(turns, ids.tolist(), logprobs, _likeliest(turns, scored), strict=True)


def _likeliest(turns: Sequence[Turn], logprobs: Tensor) -> list[_TopK | None]:
    """The likeliest tokens of each row, as many as its request asks for."""
    widths = [turn.branch.request.command.topk_sample_logprobs for turn in turns]
    if not any(widths):
        return [None] * len(turns)
    best, ids = logprobs.topk(max(widths), dim=-1)
    rows = zip(widths, ids.tolist(), best.tolist(), strict=True)
    return [(places[:width], values[:width]) if width else None for width, places, values in rows]
