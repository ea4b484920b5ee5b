"""Cross-entropy with weights as given: Σ −w · log p(target). Weights may be negative."""

from __future__ import annotations

from torch import Tensor

from tinkex.engine.losses.definition import Config, Inputs, Loss, Terms


def _terms(logprobs: Tensor, inputs: Inputs, config: Config) -> Terms:
    slope = -inputs["weights"]
    return Terms(logprobs * slope, slope)


def _stats(logprobs: Tensor, inputs: Inputs, config: Config) -> dict[str, float]:
    return {"weights:sum": float(inputs["weights"].sum())}


CROSS_ENTROPY = Loss("cross_entropy", _terms, ("weights",), "weights", stats=_stats)
