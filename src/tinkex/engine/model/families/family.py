"""What a family is: how its configuration is read. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.families.keys import Keys


@dataclass(frozen=True, slots=True)
class Norms:
    """What the norms of a layer are called, without `_layernorm`; None where there is none."""

    mixer_in: str | None = "input"
    mlp_in: str | None = "post_attention"
    mixer_out: str | None = None
    mlp_out: str | None = None


@dataclass(frozen=True, slots=True)
class Family:
    parse: Callable[[Keys], ModelConfig]
    """Its configuration, from what `config.json` says."""
    prefixes: tuple[str, ...] = ("model",)
    """Under one of these all tensors but the unembedding lie."""
    norms: Norms = field(default_factory=Norms)
    """What they are called."""
    norm_eps: float = 1e-6
    """What norms add to a variance, where `config.json` does not say."""
    unused: tuple[str, ...] = ()
    """Tensors that begin so are no part of the text model."""
    fused: bool = False
    """Whether queries, keys and values are stored as one tensor, and gate and up as another."""
    experts_are_modules: bool = True
    """Whether libraries have a module for every expert of a mixture, which an adapter can name."""
    lone_mlps_in_peft: bool = True
    """Whether PEFT can adapt layers without a mixture too: not where it takes the names of their
    matrices for those of experts."""
    flat_in_vllm: bool = False
    """Whether vLLM takes the adapters of its experts flat, as PEFT writes them."""
