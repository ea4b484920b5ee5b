"""What a family is: how its configuration is read. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.families.keys import Keys


@dataclass(frozen=True, slots=True)
class Family:
    parse: Callable[[Keys], ModelConfig]
    prefixes: tuple[str, ...] = ("model",)
    """Under one of these all tensors but the unembedding lie."""
    unused: tuple[str, ...] = ()
    """Tensors that begin so are no part of the text model."""
