"""Kernels of adapters' shared products, compiled for likely ranks before anybody asks for them.

A shape's few dozen kernels take seconds to compile, which its first user would wait for, and all
others with him. They are launched here over tables that name no adapter, one at a time: launching
one computes nothing and changes nothing. Needs Triton.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from tinkex.engine.adapters.grouped import LEAST_RANK, Shape
from tinkex.engine.kernels import lora_cuts
from tinkex.engine.kernels import lora_table as kernel
from tinkex.engine.model.slots import PlacedSlot, Slot

LIKELY = (
    Shape(LEAST_RANK, True),
    Shape(64, True),
    Shape(128, True),
    Shape(LEAST_RANK, False),
)
"""Ranks up to 128, the default's first, and such as are no multiples of 8."""


def launches(
    slots: Mapping[str, PlacedSlot], device: torch.device, dtype: torch.dtype, *,
    stream: torch.dtype, steady: bool,
) -> Iterator[None]:  # fmt: skip
    """Each step compiles a kernel or two, if that was not done on this machine before. What is
    added to the residual stream is of its dtype."""
    for shape in LIKELY:
        for slot in dict.fromkeys(placed.slot for placed in slots.values()):
            yield from _of(slot, shape, device, dtype, stream, steady)


def _of(
    slot: Slot, shape: Shape, device: torch.device, dtype: torch.dtype, stream: torch.dtype,
    steady: bool,
) -> Iterator[None]:  # fmt: skip
    widths = tuple(width for _, width in slot.modules)
    cut = (0, widths, shape.rank, shape.aligned)
    table = torch.zeros(1, kernel.FIELDS, dtype=torch.int64, device=device)
    x = torch.zeros(1, slot.in_features, dtype=dtype, device=device)
    y = torch.zeros(1, sum(widths), dtype=dtype, device=device)
    # A multiplies and B adds going ahead, the other way round going back.
    shrinks = ((x, False, slot.experts_a), (y, True, slot.experts_b))
    for count in lora_cuts.tile_counts(len(widths)):
        tiles = torch.zeros(count, kernel.TILE_FIELDS, dtype=torch.int32, device=device)
        counts = kernel.counters(count, device)
        for given, back, experts in shrinks:
            kernel.shrink(given, table, tiles, counts, *cut, back, experts, steady=steady)
            yield
    thin = torch.zeros(1, len(widths) * shape.rank, dtype=dtype, device=device)
    nobody = torch.zeros(1, kernel.TILE_FIELDS, dtype=torch.int32, device=device)
    first = torch.zeros(1, dtype=torch.int64, device=device)
    for wide, back, experts in ((y, False, slot.experts_b), (x, True, slot.experts_a)):
        tokens = first if experts else None
        kernel.expand(wide, thin, table, nobody, *cut, back, experts, tokens)
        yield
        kernel.add_sums(wide, thin, table, nobody, *cut, back, experts, tokens)
        yield
    if stream != dtype and len(widths) == 1 and not slot.experts_a:
        kernel.expand(y.to(stream), thin, table, nobody, *cut, False)
        yield
