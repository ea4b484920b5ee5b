"""Logits processors: allowed tokens, a grammar's mask, logit bias and penalties before a draw.

`SamplingControls` says what each does and in which order. They change copies: logprobs come from
the model's own logits, and a row without controls is drawn from the same bits as when it is alone.
Knows nothing of requests or schedules.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.cpu.threads import threads
from tinkex.engine.messages import SamplingControls
from tinkex.engine.to_device import to_device


class Counts:
    """The tokens that penalties apply to: each once, with how often it was drawn."""

    def __init__(self, seen: NDArray[np.int64], drawn: NDArray[np.float32]) -> None:
        self._ids, self._drawn = seen, drawn
        self._place = {token: place for place, token in enumerate(seen.tolist())}
        self._length = 0

    def __len__(self) -> int:
        """How many drawn tokens were counted."""
        return self._length

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: len(self._place)]

    @property
    def drawn(self) -> NDArray[np.float32]:
        return self._drawn[: len(self._place)]

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            place = self._place.setdefault(token, len(self._place))
            if place == len(self._ids):
                self._ids = np.append(self._ids, np.zeros(place + 64, np.int64))
                self._drawn = np.append(self._drawn, np.zeros(place + 64, np.float32))
            self._ids[place] = token
            self._drawn[place] += 1
            self._length += 1

    def followed_by(self, tokens: Sequence[int]) -> Counts:
        """The counts if these had been drawn too."""
        if not tokens:
            return self
        counts = Counts(self.ids.copy(), self.drawn.copy())
        counts.extend(tokens)
        return counts


class Steering:
    """The controls of one request in the form in which they change logits."""

    def __init__(self, controls: SamplingControls, prompt: NDArray[np.int32]) -> None:
        self.controls = controls
        self._prompt = prompt
        self.repeats = controls.repetition_penalty != 1.0
        self.counts = self.repeats or bool(controls.frequency_penalty or controls.presence_penalty)

    @property
    def changes_logits(self) -> bool:
        """Whether they do more than exclude tokens."""
        return self.counts or bool(self.controls.logit_bias)

    def none_counted(self) -> Counts:
        """Counts before anything is drawn. A repetition penalty applies to the prompt's tokens
        too."""
        seen = self._seen.copy()
        return Counts(seen, np.zeros(len(seen), np.float32))

    @functools.cached_property
    def _seen(self) -> NDArray[np.int64]:
        prompt = self._prompt if self.repeats else self._prompt[:0]
        return np.unique(prompt).astype(np.int64)

    @functools.cached_property
    def bias(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        given = self.controls.logit_bias
        return np.array([*given], np.int64), np.array([*given.values()], np.float32)

    @functools.cached_property
    def allowed(self) -> NDArray[np.int32] | None:
        """One bit for each token up to the last allowed one; None if all are allowed."""
        if self.controls.allowed_tokens is None:
            return None
        bits = np.zeros(max(self.controls.allowed_tokens) // 32 * 32 + 32, np.uint8)
        bits[list(self.controls.allowed_tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)


@dataclass(frozen=True, slots=True)
class Changes:
    """How one draw's logits are changed: fixed controls, how often tokens were drawn before it, and
    the mask of allowed tokens, one bit each; 0 beyond its end."""

    steering: Steering
    counts: Counts | None = None
    mask: NDArray[np.int32] | None = None

    @property
    def matter(self) -> bool:
        return self.mask is not None or self.steering.changes_logits


def steered(logits: Tensor, changes: Sequence[Changes]) -> Tensor:
    """The logits [R, V] to draw from; the same tensor if no row has controls."""
    if not any(change.matter for change in changes):
        return logits
    with threads(1):  # a row is too little to share, and sharing it costs milliseconds at times
        result = _masked(logits, changes)
        _add_bias(result, changes)
        _penalise(result, changes)
    return result


def _masked(logits: Tensor, changes: Sequence[Changes]) -> Tensor:
    """A copy in which no row can draw what its mask leaves out; one pass over all rows."""
    if all(change.mask is None for change in changes):
        return logits.clone()
    bits = torch.from_numpy(allowed([change.mask for change in changes], logits.shape[1]))
    return torch.where(to_device(bits, logits.device), logits, -torch.inf)


def allowed(masks: Sequence[NDArray[np.int32] | None], size: int) -> NDArray[np.bool_]:
    """Which ids each row may draw, as [R, V]."""
    words = _words(masks, (size + 31) // 32)
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=size, bitorder="little")
    return bits.view(np.bool_)


def _words(masks: Sequence[NDArray[np.int32] | None], width: int) -> NDArray[np.int32]:
    """The masks, one above the other; those of grammars are as wide as the vocabulary."""
    whole = [mask for mask in masks if mask is not None and len(mask) == width]
    if len(whole) == len(masks):
        return np.concatenate(whole).reshape(len(whole), width)
    words = np.zeros((len(masks), width), np.int32)
    for row, mask in enumerate(masks):
        if mask is None:
            words[row] = -1
        else:
            words[row, : len(mask)] = mask[:width]
    return words


def _add_bias(logits: Tensor, changes: Sequence[Changes]) -> None:
    biases = {
        row: change.steering.bias
        for row, change in enumerate(changes)
        if change.steering.controls.logit_bias
    }
    if biases:
        cells = _cells({row: ids for row, (ids, _) in biases.items()}, logits)
        added = np.concatenate([values for _, values in biases.values()])
        logits.view(-1).index_add_(0, cells, to_device(torch.from_numpy(added), logits.device))


def _penalise(logits: Tensor, changes: Sequence[Changes]) -> None:
    found = {row: change.counts for row, change in enumerate(changes) if change.counts is not None}
    if not found:
        return
    cells = _cells({row: counts.ids for row, counts in found.items()}, logits)
    penalties = [_penalties(changes[row], counts) for row, counts in found.items()]
    factor, taken = (
        to_device(torch.from_numpy(np.concatenate(part)), logits.device)
        for part in zip(*penalties, strict=True)
    )
    flat = logits.view(-1)
    value = flat[cells]
    flat[cells] = torch.where(value > 0, value / factor, value * factor) - taken


def _penalties(change: Changes, counts: Counts) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """For each counted token: what divides its logit, and what is subtracted."""
    controls, drawn = change.steering.controls, counts.drawn
    factor = np.full(len(drawn), controls.repetition_penalty, np.float32)
    once = np.where(drawn > 0, np.float32(controls.presence_penalty), np.float32(0))
    return factor, drawn * np.float32(controls.frequency_penalty) + once


def _cells(ids: Mapping[int, NDArray[np.int64]], logits: Tensor) -> Tensor:
    """The places of these ids of each row in the flattened logits."""
    placed = [row * logits.shape[1] + own for row, own in ids.items()]
    return to_device(torch.from_numpy(np.concatenate(placed)), logits.device)
