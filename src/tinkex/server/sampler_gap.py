"""How far a trainer's logprobs are from those a sampler gave, with the same weights and tokens.

Reinforcement learning brings the sampler's logprobs along with its data. While a run's weights are
those it last saved for a sampler, the trainer's own logprobs of that data should be the same; what
they differ by is error, which importance weights carry into every gradient. Data of an older
sampler is measured with it, if a client trains on such: the request does not say whose it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages import Datum, Tensor

_GIVEN = "logprobs"


@dataclass(frozen=True, slots=True)
class SamplerGap:
    """Absolute differences in nats over the sampled tokens of one call."""

    mean: float
    max: float
    tokens: int


def measure(data: Sequence[Datum], outputs: Sequence[Mapping[str, Tensor]]) -> SamplerGap | None:
    """The gap of one call, or None if it brought no sampled logprobs. Those of a prompt are zero
    by convention and do not count."""
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
