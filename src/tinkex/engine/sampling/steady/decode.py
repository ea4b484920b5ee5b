"""Captured decode steps in steady mode: the kernels of every other step, over fixed buffers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.cuda import Stream

from tinkex.engine.adapters.grouped import LEAST_RANK, LoraTable, Shape, TableLora
from tinkex.engine.model.config import slots
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.matrices.frozen import Matrix, linear
from tinkex.engine.model.ops import logits
from tinkex.engine.model.slots import UNEMBED
from tinkex.engine.sampling.projection import Span
from tinkex.engine.sampling.steady.projection import segments_of

LIKELY = Shape(LEAST_RANK, True)
"""Of adapters for which steps are captured before anybody asks; the SDK's default rank is 32."""


class SteadyAdapters:
    """The adapters of captured steps: a table for every number of rows."""

    def __init__(self, decoder: Decoder, side: Stream) -> None:
        self._decoder, self._side = decoder, side
        self._slots = slots(decoder.config)
        self._tables: dict[int, LoraTable] = {}
        self._filled: dict[int, Sequence[tuple[int, int, tuple[int, int]]]] = {}

    def fill(self, rows: int, spans: Sequence[Span]) -> Shape | None:
        """Name these spans' adapters for the next step of `rows`; the shape it is captured for."""
        segments = segments_of(spans)
        if not segments:
            return None
        # A step like the one before uploads nothing.
        named = [(s.start, s.stop, s.version.identity) for s in spans if s.version.stacked]
        if self._filled.get(rows) != named:
            self._table(rows).fill(segments)
            self._filled[rows] = named
        return Shape.of(segments)

    def forget(self) -> None:
        """Let all tables name nothing: what they named may be gone."""
        self._filled.clear()
        for table in self._tables.values():
            table.clear()

    def lora(self, rows: int, shape: Shape | None) -> TableLora | None:
        if shape is None:
            return None
        return _BesideLora(self._table(rows), shape, self._side, self._decoder.device)

    def _table(self, rows: int) -> LoraTable:
        if rows not in self._tables:
            self._tables[rows] = LoraTable(self._slots, rows, rows, self._decoder.device)
        return self._tables[rows]


class _BesideLora(TableLora):
    """The first of the small products needs nothing of the large one: it runs beside it, on a
    stream of its own."""

    def __init__(self, table: LoraTable, shape: Shape, side: Stream, device: torch.device) -> None:
        super().__init__(table, (), shape, device, steady=True)
        self._side = side

    def _projected(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None, *, wide: bool
    ) -> Tensor:
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            thin = self.shrunk(layer, slot, x)
        y = logits(x, weight) if slot == UNEMBED else linear(x, weight, bias)
        main.wait_stream(self._side)
        self.expand_thin(layer, slot, thin, y)
        return y
