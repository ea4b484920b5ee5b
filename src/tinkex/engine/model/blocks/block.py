"""What every block has: frozen tensors, products by slot, and a forward pass onto the residual."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from torch import Tensor

from tinkex.engine.model.matrices.frozen import FrozenMatrix, Matrix
from tinkex.engine.model.matrices.packed_experts import PackedExperts
from tinkex.engine.model.passes import Pass

NamedProduct = tuple[str, Matrix, Tensor | None]
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
    for field in fields(block):  # type: ignore[arg-type]  # any dataclass
        value = getattr(block, field.name)
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (FrozenMatrix, PackedExperts)):
            yield from value.tensors()
        elif hasattr(value, "products"):
            yield from block_tensors(value)


AnyBlock = TypeVar("AnyBlock", bound=Any)


def with_matrices(block: AnyBlock, made: Callable[[Tensor], Matrix]) -> AnyBlock:
    """The block with the matrices of its products in another form, those of blocks inside it
    included. Stacks of experts stay as they are."""
    own = [weight for _, weight, _ in block.products()]
    changed = {}
    for field in fields(block):
        value = getattr(block, field.name)
        if any(value is weight for weight in own):
            changed[field.name] = made(value)
        elif hasattr(value, "products"):
            changed[field.name] = with_matrices(value, made)
    return replace(block, **changed)
