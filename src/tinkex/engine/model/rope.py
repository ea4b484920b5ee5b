"""Rotary positions: frequencies with their scalings, and the cosines and sines of a batch.

Knows nothing of layers or heads. Which scalings there are is said in `rope_config`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.errors import ModelError
from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.model.rope_config import RopeConfig

_KEPT = 4096
"""Positions whose angles a CPU keeps: nine operations less in every step."""


class Rope:
    """Turns positions into the cosines and sines that rotate queries and keys."""

    def __init__(self, config: RopeConfig, device: torch.device) -> None:
        inverse, scale = _frequencies(config)
        self._inverse, self._scale = inverse.to(device), scale
        self._signed = torch.full_like(self._inverse, scale)
        by_kernels = runs_triton(self._inverse)
        if not by_kernels:
            self._signed = torch.cat([-self._signed, self._signed])
            self._inverse = torch.cat([self._inverse, self._inverse])
        self._table: Tensor | None = None
        if device.type == "cpu" and not by_kernels:
            self._table = torch.cat(self._computed(torch.arange(_KEPT)), dim=-1)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine, computed in float32: for kernels each [N, 1, head_dim / 2], elsewhere
        [N, 1, head_dim], the first half of the sine negated."""
        cos, sin = self._looked_up(positions) or self._computed(positions)
        return cos.to(dtype)[:, None], sin.to(dtype)[:, None]

    def _looked_up(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """From what is kept; None if one of the positions is beyond it."""
        if self._table is None:
            return None
        try:
            cos, sin = F.embedding(positions, self._table).chunk(2, dim=-1)
        except IndexError:
            return None
        return cos, sin

    def _computed(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        phase = positions.to(torch.float32)[:, None] * self._inverse
        return phase.cos() * self._scale, phase.sin() * self._signed


def _frequencies(config: RopeConfig) -> tuple[Tensor, float]:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = 1.0 / (config.theta**exponents)
    if config.kind == "linear":
        return plain / config.settings["factor"], 1.0
    if config.kind == "llama3":
        return _llama3(plain, config.settings), 1.0
    if config.kind == "yarn":
        return _yarn(plain, config)
    return plain, 1.0


def _llama3(plain: Tensor, settings: Mapping[str, float]) -> Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between interpolated."""
    try:
        low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    except KeyError as missing:
        raise ModelError(f"config.json: rope type 'llama3' needs {missing}") from None
    turns = settings["original_max_position_embeddings"] * plain / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (keep + (1.0 - keep) / settings["factor"])


def _yarn(plain: Tensor, config: RopeConfig) -> tuple[Tensor, float]:
    settings, half = config.settings, config.head_dim // 2
    original = settings["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return (
            config.head_dim
            * math.log(original / (turns * 2 * math.pi))
            / (2 * math.log(config.theta))
        )

    low, high = dimension(settings.get("beta_fast", 32)), dimension(settings.get("beta_slow", 1))
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    ramp = (torch.arange(half, dtype=torch.float32) - low) / (high - low or 0.001)
    keep = 1.0 - ramp.clamp(0.0, 1.0)
    return plain * (keep + (1.0 - keep) / settings["factor"]), _yarn_scale(settings)


def _yarn_scale(settings: Mapping[str, float]) -> float:
    def mscale(weight: float) -> float:
        factor = settings["factor"]
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if "attention_factor" in settings:
        return settings["attention_factor"]
    if settings.get("mscale") and settings.get("mscale_all_dim"):
        return mscale(settings["mscale"]) / mscale(settings["mscale_all_dim"])
    return mscale(1.0)
