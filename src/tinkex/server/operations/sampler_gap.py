"""How far a trainer's logprobs are from a sampler's, for the same weights and tokens.

Reinforcement learning sends the sampler's logprobs with its data. While a run's weights are the
ones it last saved for a sampler, the trainer's own logprobs of that data should be the same. Any
difference is an error that importance weights carry into every gradient. Data of an older sampler
is measured too if a client trains on it, because a request does not say which sampler it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages import Datum, Tensor

_GIVEN = "logprobs"


class SamplerGap(NamedTuple):
    """Absolute differences in nats over the sampled tokens of one call."""

    mean: float
    max: float
    tokens: int


class GapWatch:
    """Which calls of a run are measured, and the newest result, in `gap`. Told of every operation
    in the order they are sent; ends may come in any order."""

    def __init__(self) -> None:
        self.gap: SamplerGap | None = None
        self._weights = 0
        self._saving = self._saved = -1
        self._unconfirmed: tuple[int, SamplerGap] | None = None

    def change_weights(self) -> None:
        """An operation that may change the weights is being sent."""
        self._weights += 1

    def save(self) -> int:
        """The weights are being saved for a sampler; the number is for `saved`."""
        self._saving = self._weights
        return self._weights

    def saved(self, number: int) -> None:
        self._saved = number
        if self._unconfirmed is not None and self._unconfirmed[0] == number:
            self.gap = self._unconfirmed[1]

    def call(self) -> int | None:
        """A call is sent. The number is for `measured` if it counts, should the save succeed."""
        return self._weights if self._weights in (self._saving, self._saved) else None

    def measured(self, number: int, gap: SamplerGap | None) -> None:
        if gap is not None and number == self._saved:
            self.gap = gap
        elif gap is not None:
            self._unconfirmed = number, gap


def measure(data: Sequence[Datum], outputs: Sequence[Mapping[str, Tensor]]) -> SamplerGap | None:
    """The gap of one call, or None if it brought no sampled logprobs. Prompt tokens have logprob
    zero by convention and do not count."""
    found = [
        _differences(datum.inputs.get(_GIVEN), output.get(_GIVEN))
        for datum, output in zip(data, outputs, strict=True)
    ]
    gaps = np.concatenate(found) if found else np.zeros(0)
    if not len(gaps):
        return None
    return SamplerGap(float(gaps.mean()), float(gaps.max()), len(gaps))


def _differences(given: Tensor | None, trained: Tensor | None) -> NDArray[np.float64]:
    if not isinstance(given, np.ndarray) or not isinstance(trained, np.ndarray):
        return np.zeros(0)
    if given.shape != trained.shape:
        return np.zeros(0)
    gaps: NDArray[np.float64] = np.abs(trained.astype(np.float64) - given)[given != 0]
    finite: NDArray[np.float64] = gaps[np.isfinite(gaps)]
    return finite
