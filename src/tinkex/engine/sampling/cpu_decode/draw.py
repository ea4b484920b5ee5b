"""Draws of a decode step's tokens in numpy: the same race as `sampling.draw`, on the same numbers.

For samples that draw at some temperature from the model's own distribution, or from what a mask
leaves of it. Draws with other controls, or that need more than a token and its logprob, use the
`Drawer`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tinkex.engine.sampling.cache.kept_rows import Floats
from tinkex.engine.sampling.controls import allowed
from tinkex.engine.sampling.draw import HIGHEST, Drawer, Key
from tinkex.engine.sampling.request import Branch


class CpuDraw:
    """Draws for one vocabulary."""

    def __init__(self, vocab_size: int) -> None:
        self._ids = Drawer(vocab_size, torch.device("cpu")).ids.numpy().view(np.uint32)

    def drawn(self, branches: Sequence[Branch], logits: Floats) -> tuple[list[int], list[float]]:
        """The next token of each, and its logprob."""
        tokens = self._tokens(branches, _masked(branches, logits))
        highest = logits.max(-1, keepdims=True)
        total = np.add.reduce(np.exp(logits - highest), axis=-1)
        picked = logits[np.arange(len(tokens)), tokens]
        logprobs = picked - highest[:, 0] - np.log(total)
        return tokens.tolist(), logprobs.tolist()

    def _tokens(self, branches: Sequence[Branch], logits: Floats) -> NDArray[np.int64]:
        rules = [branch.request.rule for branch in branches]
        noise = self._noise([branch.draw_key(len(branch.generated)) for branch in branches])
        if any(rule.greedy for rule in rules):
            noise[[rule.greedy for rule in rules]] = 0.0
        heat = [1.0 if rule.greedy else rule.temperature for rule in rules]
        noise += logits if min(heat) == max(heat) == 1.0 else logits / _column(heat)
        found: NDArray[np.int64] = noise.argmax(-1)
        return found

    def _noise(self, keys: Sequence[Key]) -> Floats:
        """As `Drawer.noise`."""
        pair = np.array(keys, np.int32).view(np.uint32)
        bits = self._ids ^ pair[:, :1]
        bits *= np.uint32(0x7FEB352D)
        bits ^= bits >> np.uint32(15)
        bits += pair[:, 1:]
        bits *= np.uint32(0x846CA68B)
        bits ^= bits >> np.uint32(16)
        bits &= np.uint32(0xFFFFFF)
        np.minimum(bits, np.uint32(HIGHEST), out=bits)
        uniform = bits.astype(np.float32)
        uniform += np.float32(0.5)
        uniform *= np.float32(2.0**-24)
        np.log(uniform, out=uniform)
        np.negative(uniform, out=uniform)
        np.log(uniform, out=uniform)
        np.negative(uniform, out=uniform)
        return uniform


def _masked(branches: Sequence[Branch], logits: Floats) -> Floats:
    """The logits of what each may draw; the model's own where all may draw anything."""
    masks = [branch.mask() for branch in branches]
    if all(mask is None for mask in masks):
        return logits
    return np.where(allowed(masks, logits.shape[1]), logits, np.float32(-np.inf))


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, np.float32)[:, None]
