"""Statistics of reinforcement data: the sampler's entropy, and whether a datum can teach anything.

Such data brings the sampler's logprobs and an advantage per token. Minus the mean logprob of
sampled tokens estimates the policy's entropy. A datum whose advantages are all zero adds nothing to
the gradient: usually all samples of its group had the same reward.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages import Datum


def signals(data: Sequence[Datum]) -> dict[str, float]:
    """Metrics of one call, under names that say how to reduce them."""
    found: dict[str, float] = {}
    logprobs = [given[given != 0] for given in _given(data, "logprobs")]
    if sampled := sum(len(given) for given in logprobs):
        found["entropy:mean"] = -sum(float(given.sum()) for given in logprobs) / sampled
    advantages = _given(data, "advantages")
    if advantages:
        found["zero_advantages:mean"] = sum(not each.any() for each in advantages) / len(advantages)
    return found


def _given(data: Sequence[Datum], name: str) -> list[NDArray[np.float32] | NDArray[np.int64]]:
    inputs = (datum.inputs.get(name) for datum in data)
    return [given for given in inputs if isinstance(given, np.ndarray)]
