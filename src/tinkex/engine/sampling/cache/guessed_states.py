"""Speculative decoding with recurrent states: the state after each guess is kept aside.

In the end a branch's place holds the state after its own last token. A confirmed guess moves it on
to the state kept aside; a refused one has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.model.block_configs import GatedDeltaConfig
from tinkex.engine.model.linear.delta import DeltaInputs, conv_states, delta_states, heads_of
from tinkex.engine.model.linear.stretches import Stretches
from tinkex.engine.model.passes import Recur

Stores = dict[int, Tensor]
"""States by layer, [places, …]."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """The tokens that come n-th in their chunks: their rows in the pack, and the numbers, among
    the tokens of the turn before, of those that come before them."""

    rows: Tensor
    before: Tensor
    single: Stretches


class GuessedRecurrence(Recur):
    """For chunks of one token and its guesses each, laid end to end; rows after them only pad."""

    def __init__(
        self, windows: Stores, matrices: Stores, places: Sequence[int], lengths: Sequence[int],
        device: torch.device,
    ) -> None:  # fmt: skip
        self._windows, self._matrices = windows, matrices
        self._places = torch.tensor(places, device=device)
        self._turns = _turns(lengths, device)
        self._members = [
            [i for i, n in enumerate(lengths) if n > turn] for turn in range(max(lengths))
        ]
        self._aside: dict[tuple[int, int], list[Tensor]] = {}
        """By layer and which of its two stores: the states after each turn but the first."""

    def heads(
        self, layer: int, channels: Tensor, weight: Tensor, config: GatedDeltaConfig
    ) -> tuple[Tensor, Tensor, Tensor]:
        store, out = self._windows[layer], torch.zeros_like(channels)
        state, aside = store.index_select(0, self._places), []
        for turn in self._turns:
            before = state.index_select(0, turn.before)
            found, state = conv_states(channels[turn.rows], weight, turn.single, before)
            out[turn.rows] = found
            aside.append(state)
        self._put(layer, 0, store, aside)
        return heads_of(out, config)

    def delta(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor
    ) -> Tensor:
        store, out = self._matrices[layer], torch.zeros_like(v)
        state, aside = store.index_select(0, self._places), []
        for turn in self._turns:
            own = DeltaInputs.by_value_head(*(x[turn.rows] for x in (q, k, v, decay, write)))
            before = state.index_select(0, turn.before)
            found, state = delta_states(own, turn.single, before)
            out[turn.rows] = found
            aside.append(state)
        self._put(layer, 1, store, aside)
        return out

    def confirm(self, member: int, guesses: int) -> None:
        """Move the state of a chunk's branch past so many confirmed guesses."""
        row = self._members[guesses].index(member)
        place = self._places[member]
        for (layer, kind), aside in self._aside.items():
            store = (self._windows, self._matrices)[kind][layer]
            store[place] = aside[guesses - 1][row]

    def _put(self, layer: int, kind: int, store: Tensor, states: list[Tensor]) -> None:
        store.index_copy_(0, self._places, states[0])
        self._aside[layer, kind] = states[1:]


def _turns(lengths: Sequence[int], device: torch.device) -> list[_Turn]:
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    members, turns = list(range(len(lengths))), []
    for turn in range(max(lengths)):
        own = [index for index in members if lengths[index] > turn]
        rows = torch.tensor([starts[index] + turn for index in own], device=device)
        before = torch.tensor([members.index(index) for index in own], device=device)
        turns.append(_Turn(rows, before, Stretches([1] * len(own), device)))
        members = own
    return turns
