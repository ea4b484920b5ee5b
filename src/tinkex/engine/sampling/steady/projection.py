"""Batch-invariant products of a step's tokens, each with its own adapter: the form of training.

A sampler keeps an adapter's factors as training does, unscaled and stacked over layers, so that
both make the same products of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tinkex.engine.adapters.grouped import TableLora, steady_lora
from tinkex.engine.adapters.packed import Segment
from tinkex.engine.model.config import ModelConfig, slots
from tinkex.engine.sampling.adapters import Version
from tinkex.engine.sampling.projection import Span, spans_of


def steady_projection(
    config: ModelConfig, versions: Sequence[Version], lengths: Sequence[int], rows: int,
    device: torch.device,
) -> TableLora | None:  # fmt: skip
    """Of `rows` rows in all; None where none has an adapter."""
    segments = segments_of(spans_of(versions, lengths))
    return steady_lora(segments, slots(config), rows, device) if segments else None


def segments_of(spans: Sequence[Span]) -> list[Segment]:
    """Those that have an adapter."""
    return [
        Segment(span.start, span.stop, span.version.scaling, span.version.stacked, None)
        for span in spans
        if span.version.stacked
    ]
