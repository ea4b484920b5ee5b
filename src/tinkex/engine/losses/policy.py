"""Policy-gradient losses. p is the model being trained, q the one that sampled, r = p/q, A the
advantage; `logprobs` among the inputs are log q. Every formula is a sum over tokens.

    importance_sampling   −r·A
    ppo                   −min(r·A, clip(r, low, high)·A)
    cispo                 −stop(clip(r, low, high))·A·log p
    dro                   −(A·log p − β/2·(log p − log q)²)
    gspo                  ppo with s in place of r, where log s is the mean of log r over the tokens
                          of `sequence_ratio_mask`, and ds/d(log p of a token) = s
    stable_reinforce      −stop(min(r, 1))·A·log p + kl_coeff/2·(log p − log q)²  where A is not 0

The first five follow the service's public documents. Its stable_reinforce is described there in
words only; the formula above is ours: REINFORCE whose weight can only shrink off policy, with a
quadratic pull towards the sampler. Its defaults and those of dro and gspo are ours too.

An optional `weights` input multiplies a token's term. `clip_low_threshold` and
`clip_high_threshold` are bounds of the ratio itself (0.8 and 1.2, not 0.2) and may be given per
token as inputs instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tinkex.engine.losses.definition import Config, Inputs, Loss, Terms

LOW, HIGH = "clip_low_threshold", "clip_high_threshold"


def _importance_sampling(logprobs: Tensor, inputs: Inputs, config: Config) -> Terms:
    slope = -_ratio(logprobs, inputs) * _advantages(inputs)
    return Terms(slope, slope)


def _ppo(logprobs: Tensor, inputs: Inputs, config: Config) -> Terms:
    return _clipped(_ratio(logprobs, inputs), inputs, config)


def _cispo(logprobs: Tensor, inputs: Inputs, config: Config) -> Terms:
    slope = -_clip(_ratio(logprobs, inputs), inputs, config) * _advantages(inputs)
    return Terms(slope * logprobs, slope)


def _dro(logprobs: Tensor, inputs: Inputs, config: Config) -> Terms:
    drift = logprobs - inputs["logprobs"]
    return _pulled(logprobs, inputs, -inputs["advantages"], config["beta"] * drift, drift)


def _gspo(logprobs: Tensor, inputs: Inputs, config: Config) -> Terms:
    marked = inputs.get("sequence_ratio_mask", inputs["advantages"]) != 0
    drift = (logprobs - inputs["logprobs"])[marked]
    ratio = torch.exp(drift.mean()) if drift.numel() else logprobs.new_ones(())
    return _clipped(ratio.expand_as(logprobs), inputs, config)


def _stable_reinforce(logprobs: Tensor, inputs: Inputs, config: Config) -> Terms:
    drift = _drift(logprobs, inputs)
    slope = -drift.exp().clamp(max=1.0) * inputs["advantages"]
    return _pulled(logprobs, inputs, slope, config["kl_coeff"] * drift, drift)


def _clipped(ratio: Tensor, inputs: Inputs, config: Config) -> Terms:
    advantages = _advantages(inputs)
    free, held = ratio * advantages, _clip(ratio, inputs, config) * advantages
    slope = torch.where(free <= held, -free, torch.zeros_like(free))
    return Terms(-torch.minimum(free, held), slope)


def _pulled(logprobs: Tensor, inputs: Inputs, slope: Tensor, pull: Tensor, drift: Tensor) -> Terms:
    """slope · log p + pull/2 · drift, times the weights; d(pull/2 · drift)/d(log p) is pull."""
    weights = inputs.get("weights", torch.ones_like(drift))
    return Terms((slope * logprobs + 0.5 * pull * drift) * weights, (slope + pull) * weights)


def _ratio(logprobs: Tensor, inputs: Inputs) -> Tensor:
    return _drift(logprobs, inputs).exp()


def _drift(logprobs: Tensor, inputs: Inputs) -> Tensor:
    """log p − log q; 0 where there is no advantage, so that a made-up q cannot overflow there."""
    drift = logprobs - inputs["logprobs"]
    return torch.where(inputs["advantages"] != 0, drift, torch.zeros_like(drift))


def _advantages(inputs: Inputs) -> Tensor:
    weights = inputs.get("weights")
    return inputs["advantages"] if weights is None else inputs["advantages"] * weights


def _clip(ratio: Tensor, inputs: Inputs, config: Config) -> Tensor:
    low = inputs.get(LOW, torch.full_like(ratio, config[LOW]))
    high = inputs.get(HIGH, torch.full_like(ratio, config[HIGH]))
    return torch.minimum(torch.maximum(ratio, low), high)


def _stats(logprobs: Tensor, inputs: Inputs, config: Config) -> dict[str, float]:
    sampled = inputs["advantages"] != 0
    if not bool(sampled.any()):
        return {"ratio:mean": 1.0, "ratio:min": 1.0, "ratio:max": 1.0, "kl_sample_train:mean": 0.0}
    drift = (logprobs - inputs["logprobs"])[sampled]
    ratio = drift.exp()
    return {
        "ratio:mean": float(ratio.mean()),
        "ratio:min": float(ratio.min()),
        "ratio:max": float(ratio.max()),
        "kl_sample_train:mean": float(-drift.mean()),
    }


def _clip_stats(logprobs: Tensor, inputs: Inputs, config: Config) -> dict[str, float]:
    sampled = inputs["advantages"] != 0
    ratio = _ratio(logprobs, inputs)
    outside = (_clip(ratio, inputs, config) != ratio)[sampled]
    share = float(outside.double().mean()) if outside.numel() else 0.0
    return {**_stats(logprobs, inputs, config), "clip_fraction:mean": share}


_INPUTS = ("logprobs", "advantages")
_WEIGHTS = ("weights",)
_CLIPS = ("weights", LOW, HIGH)

POLICY_LOSSES = (
    Loss(
        "importance_sampling", _importance_sampling, _INPUTS, "advantages", _WEIGHTS, stats=_stats
    ),
    Loss("ppo", _ppo, _INPUTS, "advantages", _CLIPS, {LOW: 0.8, HIGH: 1.2}, stats=_clip_stats),
    Loss("cispo", _cispo, _INPUTS, "advantages", _CLIPS, {LOW: 0.0, HIGH: 4.0}, stats=_clip_stats),
    Loss("dro", _dro, _INPUTS, None, _WEIGHTS, {"beta": 0.05}, stats=_stats),
    Loss(
        "gspo",
        _gspo,
        _INPUTS,
        "advantages",
        (*_CLIPS, "sequence_ratio_mask"),
        {LOW: 0.8, HIGH: 1.2},
        whole_sequence=True,
        stats=_stats,
    ),
    Loss(
        "stable_reinforce",
        _stable_reinforce,
        _INPUTS,
        "advantages",
        _WEIGHTS,
        {"kl_coeff": 0.0},
        stats=_stats,
    ),
)
