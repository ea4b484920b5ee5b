"""The limits of a sampler: pages, rows, tokens of a step, memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """The most of everything that a sampler holds or computes at once."""

    pages: int  # of keys and values in all
    max_context: int  # the most tokens of a sequence
    rows: int = 64  # branches that decode at once
    step_tokens: int = 256  # of one step, prompts included
    logit_elements: int = 1 << 24  # of the largest block of logits
    adapter_bytes: int = 1 << 30  # for served adapters that are not in use
    snapshots: int = 32  # kept states of recurrent layers
