"""Finds a loss by name and checks its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tinkex.engine.errors import UserError
from tinkex.engine.losses.cross_entropy import CROSS_ENTROPY
from tinkex.engine.losses.definition import Loss
from tinkex.engine.losses.policy import POLICY_LOSSES

LOSSES: dict[str, Loss] = {loss.name: loss for loss in (CROSS_ENTROPY, *POLICY_LOSSES)}


def find_loss(name: str) -> Loss:
    if name not in LOSSES:
        known = ", ".join([*LOSSES, "custom"])
        raise UserError(f"loss_fn: {name!r} is not known; known losses are {known}")
    return LOSSES[name]


def read_config(loss: Loss, given: Mapping[str, float | str]) -> dict[str, float]:
    """The loss's settings, those not given at their defaults."""
    settings = dict(loss.config)
    for key, value in given.items():
        if key not in settings:
            known = ", ".join(settings) or "none"
            raise UserError(
                f"loss_fn_config: {key!r} is no setting of {loss.name}; its settings: {known}"
            )
        if isinstance(value, (str, bool)) or not math.isfinite(value):
            raise UserError(f"loss_fn_config: {key} must be a finite number, not {value!r}")
        settings[key] = float(value)
    low, high = settings.get("clip_low_threshold"), settings.get("clip_high_threshold")
    if low is not None and high is not None and low > high:
        raise UserError(
            f"loss_fn_config: clip_low_threshold {low:g} is above clip_high_threshold {high:g}"
        )
    return settings
