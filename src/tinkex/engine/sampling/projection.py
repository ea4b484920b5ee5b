"""Matrix products for one step's tokens, each with its own adapter. Tokens are sorted by version,
so a version is a slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tinkex.engine.model.products import FrozenProducts
from tinkex.engine.sampling.versions import Version


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [start, stop) that use one version."""

    start: int
    stop: int
    version: Version


class Projection:
    """A `Lora` for one step."""

    def __init__(self, frozen: FrozenProducts, spans: Sequence[Span]) -> None:
        self._frozen = frozen
        self._spans = [span for span in spans if span.version.products]

    def project(
        self, layer: int, slot: str, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        y = self._frozen.product(layer, slot, x, weight, bias)
        for span in self._spans:
            assert span.version.products is not None
            factors = span.version.products.get((layer, slot))
            if factors is not None:
                a, b = factors
                y[span.start : span.stop].addmm_(x[span.start : span.stop] @ a, b)
        return y


def spans_of(versions: Sequence[Version]) -> list[Span]:
    """Spans of rows whose versions are these; equal ones lie side by side."""
    spans: list[Span] = []
    for row, version in enumerate(versions):
        if spans and spans[-1].version is version:
            spans[-1] = Span(spans[-1].start, row + 1, version)
        else:
            spans.append(Span(row, row + 1, version))
    return spans
