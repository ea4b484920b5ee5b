"""What a sampler may take: pages, rows, tokens of a step, memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """`step_tokens` bounds the tokens of one step, `rows` the branches that decode at once and
    `logit_elements` the largest block of logits. `adapter_bytes` is the budget for served
    adapters that are not in use, `snapshots` the number of kept states of recurrent layers."""

    pages: int
    max_context: int
    rows: int = 64
    step_tokens: int = 256
    logit_elements: int = 1 << 24
    adapter_bytes: int = 1 << 30
    snapshots: int = 32
