"""Rotary positions as a Hugging Face `config.json` states them: which scaling, with which numbers.

Scalings that depend on the length of the sequence (dynamic, longrope) are refused: with them a
token's key would change as its sequence grows. Knows nothing of tensors, so that a folder can be
judged without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinkex.engine.errors import ModelError

_KEYS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
}


_MAY_BE_ZERO = frozenset({"mscale", "mscale_all_dim"})


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """`kind` is default, linear, llama3 or yarn; `settings` its numbers."""

    theta: float
    head_dim: int
    kind: str = "default"
    settings: Mapping[str, float] = field(default_factory=dict)


def parse_rope(
    config: Mapping[str, Any], head_dim: int, default_theta: float, default_part: float | None
) -> RopeConfig:
    """Read `rope_parameters`, or the older `rope_theta` with `rope_scaling`.

    `default_part` is how much of a head is rotated where nothing is said; None where it must be all
    of it. The `head_dim` of what is returned is what is rotated.
    """
    raw = dict(as_object("rope_scaling", config.get("rope_scaling")))
    raw.update(as_object("rope_parameters", config.get("rope_parameters")))
    by_kind = next((key for key, value in raw.items() if isinstance(value, dict)), None)
    if by_kind is not None:
        raise ModelError(
            f"config.json: rope_parameters of {by_kind!r} layers alone are not supported for this "
            "model_type; give one rope_type and rope_theta for all layers"
        )
    kind = raw.pop("rope_type", None) or raw.get("type") or "default"
    raw.pop("type", None)
    theta = raw.pop("rope_theta", None) or config.get("rope_theta") or default_theta
    part = raw.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor")
    part = positive("partial_rotary_factor", part or default_part or 1.0)
    if part > 1.0:
        raise ModelError(f"config.json: partial_rotary_factor {part} is more than 1")
    if default_part is None and part != 1.0:
        raise ModelError(f"config.json: partial_rotary_factor {part} is not supported, only 1.0")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise ModelError(
            f"config.json: rope type {kind!r} is not supported; supported: {', '.join(_KEYS)}"
        )
    settings = {key: value for key, value in raw.items() if value is not None}
    unknown = sorted(settings.keys() - _KEYS[kind])
    if kind != "default" and unknown:
        raise ModelError(f"config.json: rope setting {unknown[0]!r} is unknown for {kind!r}")
    if kind == "default":
        settings = {}
    elif "factor" not in settings:
        raise ModelError(f"config.json: rope type {kind!r} needs 'factor'")
    if kind in ("llama3", "yarn"):
        context = config.get("max_position_embeddings")
        settings.setdefault("original_max_position_embeddings", context)
    for name, value in settings.items():
        _check_setting(name, value)
    turned = int(head_dim * part)
    if turned < 2 or turned % 2:
        raise ModelError(
            f"config.json: partial_rotary_factor {part} of heads of size {head_dim} turns {turned} "
            "numbers of each; it must be an even number of them, and some"
        )
    return RopeConfig(positive("rope_theta", theta), turned, kind, settings)


def as_object(name: str, value: Any) -> Mapping[str, Any]:
    """What a key holds, which must be an object, or nothing."""
    if value is not None and not isinstance(value, dict):
        raise ModelError(f"config.json: {name} must be an object, not {value!r}")
    return value or {}


def positive(name: str, value: Any) -> float:
    """What a key holds, which must be a number above zero."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not known or not 0 < value < math.inf:
        raise ModelError(f"config.json: {name} must be a number above 0, not {value!r}")
    return float(value)


def _check_setting(name: str, value: Any) -> None:
    if name == "truncate":
        if not isinstance(value, bool):
            raise ModelError(f"config.json: rope setting truncate must be true or false: {value!r}")
    elif name not in _MAY_BE_ZERO or value != 0:
        positive(f"rope setting {name}", value)
