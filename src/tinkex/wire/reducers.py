"""Metrics of several chunks made into one: the suffix after the colon names the rule.

A key that does not follow `name:rule` keeps the first chunk's value, with a debug message: one odd
metric must not cost anybody a training step.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

_log = logging.getLogger(__name__)

_Values = Sequence[float]
_MASK_64 = 2**64 - 1


def _mean(values: _Values, weights: _Values) -> float:
    total = sum(weights)
    if not total:
        return sum(values) / len(values)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / total


def _slack(values: _Values, weights: _Values) -> float:
    return max(values) - _mean(values, weights)


def _hash2(values: _Values, weights: _Values) -> float:
    return sum(int(value) for value in values) & _MASK_64


REDUCERS: dict[str, Callable[[_Values, _Values], float]] = {
    "mean": _mean,
    "sum": lambda values, weights: sum(values),
    "min": lambda values, weights: min(values),
    "max": lambda values, weights: max(values),
    "slack": _slack,
    "hash2": _hash2,
}
"""Rule -> how it makes one number of several. `unique` is not here: it keeps them all."""


def reduce_metrics(
    chunks: Sequence[Mapping[str, float]], weights: Sequence[float]
) -> dict[str, float]:
    """One set of metrics for all chunks; `weights` are the datums of each.

    Keys are those of the first chunk that every chunk has. An unknown rule drops its key.
    """
    if not chunks:
        return {}
    combined: dict[str, float] = {}
    for key in chunks[0]:
        if all(key in chunk for chunk in chunks):
            combined.update(_reduced(key, [chunk[key] for chunk in chunks], weights))
    return combined


def _reduced(key: str, values: _Values, weights: _Values) -> dict[str, float]:
    name, colon, rule = key.partition(":")
    if not colon or not name or ":" in rule:
        _log.debug("metric %r is not name:rule; keeping the first chunk's value", key)
        return {key: values[0]}
    if rule == "unique":
        return {key if i == 0 else f"{key}_{i}": value for i, value in enumerate(values)}
    if rule not in REDUCERS:
        _log.debug("metric %r has an unknown rule; dropped", key)
        return {}
    return {key: REDUCERS[rule](values, weights)}
