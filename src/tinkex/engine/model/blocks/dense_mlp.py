"""The dense SwiGLU MLP: gate and up in one product, then down. No state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.model.block_configs import DenseMlpConfig
from tinkex.engine.model.blocks.block import NamedProduct
from tinkex.engine.model.matrices.frozen import Matrix
from tinkex.engine.model.ops import row_wise
from tinkex.engine.model.passes import Pass


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """Matrices are [out, in]; gate and up stacked."""

    config: DenseMlpConfig
    gate_up: Matrix
    down: Matrix
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    def products(self) -> Iterator[NamedProduct]:
        yield self.config.gate_up, self.gate_up, self.gate_up_bias
        yield self.config.down, self.down, self.down_bias

    def alone(self, layer: int, x: Tensor, run: Pass) -> Tensor:
        """What the block makes of its input, not added to anything."""
        inner = self._inner(layer, x, run)
        return run.project(layer, self.config.down, inner, self.down, self.down_bias)

    def forward(self, layer: int, x: Tensor, onto: Tensor, run: Pass) -> Tensor:
        inner = self._inner(layer, x, run)
        return run.project_onto(onto, layer, self.config.down, inner, self.down, self.down_bias)

    def _inner(self, layer: int, x: Tensor, run: Pass) -> Tensor:
        asked = (layer, self.config.gate_up, x, self.gate_up, self.gate_up_bias)
        if not self.config.gelu:
            return run.project_gated(*asked)
        gate, up = run.project(*asked).chunk(2, dim=-1)
        return row_wise(_gelu, gate.contiguous()) * up


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")
