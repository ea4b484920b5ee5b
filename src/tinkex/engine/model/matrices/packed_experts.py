"""A stack of experts' matrices kept as MXFP4 ships them, widened where they are used.

Four bits and a share of a scale instead of 16 or 32 for each number. A widened matrix is the same
numbers in the same places, so what is made of it has the same bits. On a CPU an expert is widened
when tokens go to it. On a GPU the kernels of a decode step widen each tile as they load it; for
many tokens all of a layer's are widened, since who is hit is not known on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from tinkex.engine.model.mxfp4 import BLOCK, widen


@dataclass(frozen=True, slots=True, eq=False)
class PackedExperts:
    """`blocks` [experts, rows, columns / 32, 16] and `scales` [experts, rows, columns / 32]."""

    blocks: Tensor
    scales: Tensor
    dtype: torch.dtype  # that they are widened to

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of what they stand for: [experts, rows, columns]."""
        experts, rows, groups = self.scales.shape
        return experts, rows, groups * BLOCK

    def __getitem__(self, expert: int) -> Tensor:
        """One matrix, widened."""
        return widen(self.blocks[expert], self.scales[expert], self.dtype)

    def widened(self) -> Tensor:
        """All of them. One by one: what is made on the way is several times as large."""
        out = self.blocks.new_empty(self.shape, dtype=self.dtype)
        for expert, matrix in enumerate(out):
            matrix.copy_(self[expert])
        return out

    def tensors(self) -> Iterator[Tensor]:
        yield from (self.blocks, self.scales)


ExpertStack: TypeAlias = Tensor | PackedExperts
"""[experts, rows, columns]."""


def gate_first(stack: ExpertStack) -> ExpertStack:
    """Rows of gate and up that alternate, gate's first and up's after them."""
    if isinstance(stack, Tensor):
        return torch.cat([stack[:, ::2], stack[:, 1::2]], dim=1)
    blocks, scales = (torch.cat([t[:, ::2], t[:, 1::2]], dim=1) for t in stack.tensors())
    return PackedExperts(blocks, scales, stack.dtype)
