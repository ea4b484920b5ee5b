"""Turns logits into tokens. The same key gives the same token, whatever else is in the batch.

A draw is a race (Gumbel-max): every token id gets a number that is a pure function of the row's key
and the id, and the best `logit / temperature + number` wins. There is no state to share between
rows, and a rounding error in one logit can only change the outcome of a near tie. Logprobs are
those of the model's own distribution: temperature, min_p, top_k and top_p shape the draw, not the
logprob.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.cpu.threads import logsumexp

SAMPLE = 1
ALTERNATIVE = 2
COLDEST = 1e-5
"""Below this temperature scaled logits leave float32's range; the draw is greedy by then anyway."""

HIGHEST = 0xFFFFFE
"""Highest value of the random bits that noise is made of."""

_FIRST_CANDIDATES = 1024
_KEYS_AT_ONCE = 64

_MASK = (1 << 64) - 1


Key: TypeAlias = tuple[int, int]
"""Two 32-bit numbers (signed), low and high, that name one draw."""

Keys: TypeAlias = Sequence[Key] | NDArray[np.int32]
"""One key for each row."""


def draw_key(seed: int, stream: int, index: int, position: int) -> Key:
    """The key of the draw at `position` of sample `index`; `stream` keeps purposes apart."""
    state = _mix64(key_state(seed, stream, index) ^ _mix64(position & _MASK))
    return _signed(state & 0xFFFFFFFF), _signed(state >> 32)


def key_state(seed: int, stream: int, index: int) -> int:
    """What the keys of one sample's draws have in common; `draw_keys` continues from it."""
    state = _mix64(seed & _MASK)
    for part in (stream, index):
        state = _mix64(state ^ _mix64(part & _MASK))
    return state


@functools.lru_cache(maxsize=256)
def rule_of(temperature: float, top_k: int, top_p: float, min_p: float) -> Rule:
    """The same object for the same numbers, so that a batch's rules are compared quickly."""
    return Rule(temperature, top_k, top_p, min_p)


def draw_keys(states: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.int32]:
    """The keys of many samples' draws at once, as [2, n]: low and high numbers."""
    mixed = _mix64s(states ^ _mix64s(positions))
    halves = np.stack([mixed & np.uint64(0xFFFFFFFF), mixed >> np.uint64(32)])
    return halves.astype(np.uint32).view(np.int32)


def keys_from(state: int, place: int) -> list[Key]:
    """The keys of one sample's next draws, from that of its token `place` on."""
    places = np.arange(place, place + _KEYS_AT_ONCE, dtype=np.uint64)
    low, high = draw_keys(np.full(_KEYS_AT_ONCE, state, np.uint64), places).tolist()
    return list(zip(low, high, strict=True))


@dataclass(frozen=True, slots=True)
class Rule:
    """How one row is drawn. Temperature 0, or next to it, takes the likeliest token."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature < COLDEST or self.top_k == 1

    @property
    def filtered(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


class Drawer:
    """Draws for one vocabulary on one device."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        ids = torch.arange(1, vocab_size + 1, dtype=torch.int32, device=device)
        self.ids = _scramble(_scramble(ids))
        self._device = device

    def draw(self, logits: Tensor, rules: Sequence[Rule], keys: Keys) -> Tensor:
        """One id per row of float32 `logits` [R, V], as int64 [R]."""
        kinds = dict(zip(map(id, rules), rules, strict=True)).values()
        if all(rule.greedy for rule in kinds):
            return logits.argmax(-1)
        scores = logits
        if any(rule.temperature != 1.0 and not rule.greedy for rule in kinds):
            heat = [1.0 if rule.greedy else rule.temperature for rule in rules]
            scores = logits / self._column(heat)
        if any(rule.filtered and not rule.greedy for rule in kinds):
            scores = self._filter(scores, rules)
        drawn = (scores + self.noise(keys)).argmax(-1)
        if any(rule.greedy for rule in kinds):
            greedy = torch.tensor([rule.greedy for rule in rules], device=self._device)
            drawn = torch.where(greedy, logits.argmax(-1), drawn)
        return drawn

    def totals(self, logits: Tensor) -> Tensor:
        """The logarithm of each row's sum of exponentials [R], of float32 `logits` [R, V]."""
        return logsumexp(logits)

    def scored(self, logits: Tensor) -> Tensor:
        """Logprobs [R, V]."""
        return logits.log_softmax(-1)

    def noise(self, keys: Keys) -> Tensor:
        """Standard Gumbel numbers [R, V], each a function of its row's key and its column."""
        pair = torch.tensor(keys, dtype=torch.int32, device=self._device)
        bits = self.ids ^ pair[:, :1]
        bits.mul_(0x7FEB352D)
        bits.bitwise_xor_(_right(bits, 15))
        bits.add_(pair[:, 1:])
        bits.mul_(_signed(0x846CA68B))
        bits.bitwise_xor_(_right(bits, 16))
        # 24 bits make a float32 exactly; the half keeps it away from 0, and the bound from 1: the
        # highest and a half would be rounded up to it, and a number without end wins every race.
        bits = bits.bitwise_and_(0xFFFFFF).clamp_(max=HIGHEST)
        uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-24)
        return uniform.log_().neg_().log_().neg_()

    def _filter(self, scores: Tensor, rules: Sequence[Rule]) -> Tensor:
        """Minus infinity for ids outside each row's min_p, top_k and top_p; other rows as they
        are."""
        rows = [row for row, rule in enumerate(rules) if rule.filtered and not rule.greedy]
        picked = _likely_enough(scores[rows], [rules[row].min_p for row in rows])
        kept = _kept(picked, [rules[row] for row in rows])
        result = scores.clone()
        result[rows] = picked.masked_fill(~kept, -torch.inf)
        return result

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)[:, None]


def _likely_enough(scores: Tensor, parts: Sequence[float]) -> Tensor:
    """Minus infinity for ids less likely than that fraction of the row's likeliest."""
    if not any(parts):
        return scores
    least = [math.log(part) if part else -math.inf for part in parts]
    floor = torch.tensor(least, dtype=torch.float32, device=scores.device)[:, None]
    return scores.masked_fill(scores < scores.amax(-1, keepdim=True) + floor, -torch.inf)


def _kept(scores: Tensor, rules: Sequence[Rule]) -> Tensor:
    """Which ids stay: the top_k largest, then the fewest of those whose mass reaches top_p."""
    vocab = scores.shape[1]
    limits = [rule.top_k if 0 < rule.top_k < vocab else vocab for rule in rules]
    width = min(vocab, max(_FIRST_CANDIDATES, *(k for k in limits if k < vocab), 1))
    kept, complete = _kept_of_top(scores, rules, limits, width)
    if not complete:
        kept, _ = _kept_of_top(scores, rules, limits, vocab)
    return kept


def _kept_of_top(
    scores: Tensor, rules: Sequence[Rule], limits: Sequence[int], width: int
) -> tuple[Tensor, bool]:
    """The ids kept when only the `width` best are looked at, and whether those were enough."""
    device = scores.device
    values, ids = scores.topk(width, dim=-1)
    limit = torch.tensor(limits, device=device)[:, None]
    mass = torch.tensor([rule.top_p for rule in rules], device=device)[:, None]
    inside = torch.arange(width, device=device) < limit
    values = values.masked_fill(~inside, -torch.inf)
    # Rows without a top_k are normalised over the whole vocabulary, the others over their k.
    whole = torch.where(
        limit < scores.shape[1], logsumexp(values)[:, None], logsumexp(scores)[:, None]
    )
    before = (values - whole).exp().cumsum(-1)
    before = before - (values - whole).exp()
    inside &= (before < mass) | (mass >= 1.0)
    inside[:, 0] = True
    reached = (limit <= width) | ~inside[:, -1:]
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, ids, inside)
    return kept, width == scores.shape[1] or bool(reached.all())


def _scramble(bits: Tensor) -> Tensor:
    bits = (bits ^ _right(bits, 16)) * 0x7FEB352D
    bits = (bits ^ _right(bits, 15)) * _signed(0x846CA68B)
    return bits ^ _right(bits, 16)


def _right(bits: Tensor, count: int) -> Tensor:
    """Shift right without the sign."""
    return (bits >> count).bitwise_and_((1 << (32 - count)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def _mix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix64s(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
