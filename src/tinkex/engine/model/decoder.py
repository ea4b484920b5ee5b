"""One decoder for all families: a forward pass over packed tokens with two open places.

Tokens of any number of sequences lie end to end in one row of N. Which tokens see which, and where
keys and values are kept, is the `attend` strategy's business; what adapters add to the frozen
matrices is the `lora` strategy's. Training and sampling bring their own of each and share this
code, so they agree on the numbers. Knows nothing of sequences, runs, adapters or caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.ops import rms_norm, rotate, swiglu
from tinkex.engine.model.rope import Rope

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, heads, D], k [N, kv_heads, D], v [N, kv_heads, D]) -> [N, heads, D].

Queries and keys come rotated and not yet scaled by 1/sqrt(D). The layer's sliding window is
`config.windows[layer]`.
"""


class Lora(Protocol):
    """What adapters do to the frozen matrix products."""

    def project(
        self, layer: int, slot: str, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """x @ weight.T + bias, plus each token's own low-rank product for the slot's modules.

        `slot` is a key of `slots(config)`; the output columns of its modules lie side by side in
        the order listed there. `layer` is -1 for "lm_head".
        """
        ...

    def project_onto(
        self, onto: Tensor, layer: int, slot: str, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """`onto` plus what `project` gives; without gradients `onto` may be written over."""
        return onto + self.project(layer, slot, x, weight, bias)


@dataclass(frozen=True, slots=True)
class Slot:
    """One fused matrix product: its input width and its modules as (name, output width)."""

    in_features: int
    modules: tuple[tuple[str, int], ...]


def slots(config: ModelConfig) -> dict[str, Slot]:
    """The places where an adapter may add a product. Per layer, except "lm_head"."""
    hidden, inner = config.hidden_size, config.intermediate_size
    qkv = (("q_proj", config.q_size), ("k_proj", config.kv_size), ("v_proj", config.kv_size))
    return {
        "qkv_proj": Slot(hidden, qkv),
        "o_proj": Slot(config.q_size, (("o_proj", hidden),)),
        "gate_up_proj": Slot(hidden, (("gate_proj", inner), ("up_proj", inner))),
        "down_proj": Slot(inner, (("down_proj", hidden),)),
        "lm_head": Slot(hidden, (("lm_head", config.vocab_size),)),
    }


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's frozen tensors; matrices are [out, in], q, k, v and gate, up stacked."""

    input_norm: Tensor
    qkv: Tensor
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's frozen tensors. With tied embeddings `unembed` is `embed` itself."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    unembed: Tensor

    def products(self) -> Iterator[tuple[tuple[int, str], Tensor, Tensor | None]]:
        """Every matrix with its bias, by layer and slot."""
        for index, layer in enumerate(self.layers):
            yield (index, "qkv_proj"), layer.qkv, layer.qkv_bias
            yield (index, "o_proj"), layer.o, layer.o_bias
            yield (index, "gate_up_proj"), layer.gate_up, layer.gate_up_bias
            yield (index, "down_proj"), layer.down, layer.down_bias
        yield (-1, "lm_head"), self.unembed, None

    def tensors(self) -> list[Tensor]:
        """Every tensor once."""
        tied = self.unembed is self.embed
        found = [self.embed, self.final_norm] + ([] if tied else [self.unembed])
        for layer in self.layers:
            fields = (getattr(layer, name) for name in LayerWeights.__slots__)
            found.extend(tensor for tensor in fields if tensor is not None)
        return found


class Decoder:
    """A frozen model. Its methods may be called with or without gradients."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.embed.device
        self.dtype = weights.embed.dtype
        self.parameters = sum(tensor.numel() for tensor in weights.tensors())
        self._rope = Rope(config.rope, self.device)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        lora: Lora | None = None,
        recompute: bool = False,
    ) -> Tensor:
        """[N] ids at [N] positions to [N, hidden_size], after the final norm.

        `recompute` keeps only each layer's input for the backward pass and computes the rest
        again: about a third more time for a fraction of the memory.
        """
        x = F.embedding(tokens, self.weights.embed)
        cos, sin = self._rope.angles(positions, x.dtype)
        for index in range(self.config.layers):
            if recompute and torch.is_grad_enabled():
                x = checkpoint(
                    self._layer, index, x, cos, sin, attend, lora,
                    use_reentrant=False, preserve_rng_state=False,
                )  # fmt: skip
            else:
                x = self._layer(index, x, cos, sin, attend, lora)
        return rms_norm(x, self.weights.final_norm, self.config.norm_eps)

    def unembed(self, hidden: Tensor, lora: Lora | None = None) -> Tensor:
        """[n, hidden_size] to logits [n, vocab_size], in the model's dtype."""
        return _project(lora, -1, "lm_head", hidden, self.weights.unembed, None)

    def _layer(
        self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, lora: Lora | None
    ) -> Tensor:
        layer, eps = self.weights.layers[index], self.config.norm_eps
        normed = rms_norm(x, layer.input_norm, eps)
        qkv = _project(lora, index, "qkv_proj", normed, layer.qkv, layer.qkv_bias)
        q, k, v = self._queries_keys_values(index, qkv, cos, sin)
        mixed = attend(index, q, k, v).reshape(x.shape[0], self.config.q_size)
        x = _project_onto(lora, x, index, "o_proj", mixed, layer.o, layer.o_bias)
        normed = rms_norm(x, layer.post_norm, eps)
        gate_up = _project(lora, index, "gate_up_proj", normed, layer.gate_up, layer.gate_up_bias)
        inner = swiglu(gate_up)
        return _project_onto(lora, x, index, "down_proj", inner, layer.down, layer.down_bias)

    def _queries_keys_values(
        self, index: int, qkv: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        config, layer = self.config, self.weights.layers[index]
        heads = qkv.view(qkv.shape[0], -1, config.head_dim)
        turned, v = heads.split_with_sizes([config.heads + config.kv_heads, config.kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = turned.split_with_sizes([config.heads, config.kv_heads], dim=1)
            q = rms_norm(q, layer.q_norm, config.norm_eps)
            k = rms_norm(k, layer.k_norm, config.norm_eps)
            turned = torch.cat([q, k], dim=1)
        if config.rotary[index]:
            turned = rotate(turned, cos, sin)
        q, k = turned.split_with_sizes([config.heads, config.kv_heads], dim=1)
        return q, k, v


def _project(
    lora: Lora | None, layer: int, slot: str, x: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    if lora is None:
        return F.linear(x, weight, bias)
    return lora.project(layer, slot, x, weight, bias)


def _project_onto(
    lora: Lora | None, onto: Tensor, layer: int, slot: str, x: Tensor, weight: Tensor,
    bias: Tensor | None,
) -> Tensor:  # fmt: skip
    if lora is None and bias is None and not torch.is_grad_enabled():
        # One kernel and one pass over the residual less, which a decode step on a GPU feels.
        return onto.addmm_(x, weight.T)
    if lora is None:
        return onto + F.linear(x, weight, bias)
    return lora.project_onto(onto, layer, slot, x, weight, bias)
