"""Where training tokens came from: runs of positions named after the sequence that produced them.

Used by losses that look at how a sample was drawn. Knows nothing of datums.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tinkex.types.strictness import exported


@dataclass(frozen=True, kw_only=True)
class _Span:
    """Tokens of a sampled sequence."""

    sequence_id: str
    offset: int = 0
    length: int

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not self.sequence_id:
            raise ValueError(f"{name}.sequence_id must not be empty")
        for field in ("offset", "length"):
            if getattr(self, field) < 0:
                raise ValueError(f"{name}.{field} must be >= 0, got {getattr(self, field)}")


@exported
@dataclass(frozen=True, kw_only=True)
class PromptProvenanceSpan(_Span):
    """`length` positions that were the prompt of a sampled sequence, from its `offset` on."""


@exported
@dataclass(frozen=True, kw_only=True)
class SampledProvenanceSpan(_Span):
    """`length` positions that were sampled as part of a sequence, from its `offset` on."""


ProvenanceSpans: TypeAlias = list[PromptProvenanceSpan | SampledProvenanceSpan]


def check_tiling(field: str, spans: ProvenanceSpans, positions: int) -> None:
    """ValueError unless the spans cover exactly `positions` positions."""
    covered = sum(span.length for span in spans)
    if covered != positions:
        raise ValueError(f"{field} spans cover {covered} positions of {positions}: tile them all")
