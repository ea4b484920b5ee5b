"""What every block has: frozen tensors, products by slot, and a forward pass onto the residual."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Protocol

from torch import Tensor

from tinkex.engine.model.passes import Pass

NamedProduct = tuple[str, Tensor, Tensor | None]
"""A slot, its matrix and its bias."""


class Block(Protocol):
    """Blocks are frozen dataclasses whose fields are their configuration and their tensors."""

    def forward(self, layer: int, x: Tensor, onto: Tensor, run: Pass) -> Tensor:
        """`onto` [N, hidden] plus what the block makes of its normed input `x` [N, hidden]."""
        ...

    def products(self) -> Iterator[NamedProduct]:
        """Every frozen matrix product, as `Lora.project` is asked for it."""
        ...


def block_tensors(block: object) -> Iterator[Tensor]:
    """The tensors of a dataclass, those of blocks inside it included."""
    for field in fields(block):  # type: ignore[arg-type]
        value = getattr(block, field.name)
        if isinstance(value, Tensor):
            yield value
        elif hasattr(value, "products"):
            yield from block_tensors(value)
