"""One decoder for all families: layers of blocks over packed tokens, between two embeddings.

Training and sampling bring their own strategies (see `passes`) and share this code, so they agree
on the numbers. Knows nothing of sequences, runs, adapters or caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from tinkex.engine.model.blocks.block import Block, block_tensors
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.matrices.frozen import Matrix
from tinkex.engine.model.ops import logits, rms_norm
from tinkex.engine.model.passes import Angles, Attend, Lora, Pass, Recur, Replayed, Routed
from tinkex.engine.model.rope import Rope
from tinkex.engine.model.rope_config import RopeConfig
from tinkex.engine.model.slots import UNEMBED, UNEMBED_LAYER


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's blocks, each with the norm of its input and that of its output, where they are."""

    input_norm: Tensor | None  # of the mixer's input; None: it has none
    mixer: Block  # attention or a linear layer
    post_norm: Tensor | None  # of the MLP's input; None: it has none
    mlp: Block  # dense, or experts
    mixer_norm: Tensor | None = None  # of the mixer's output, where a family has one
    mlp_norm: Tensor | None = None  # of the MLP's output, likewise


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's frozen tensors. With tied embeddings `unembed` has the tensor of `embed`."""

    embed: Tensor
    layers: tuple[Layer, ...]
    final_norm: Tensor
    unembed: Matrix

    def products(self) -> Iterator[tuple[tuple[int, str], Matrix, Tensor | None]]:
        """Every matrix with its bias, by layer and slot."""
        for index, layer in enumerate(self.layers):
            for block in (layer.mixer, layer.mlp):
                for slot, weight, bias in block.products():
                    yield (index, slot), weight, bias
        yield (UNEMBED_LAYER, UNEMBED), self.unembed, None

    def tensors(self) -> list[Tensor]:
        """Every tensor once."""
        head = self.unembed
        found = [self.embed, self.final_norm]
        found += [t for t in ([head] if isinstance(head, Tensor) else head.tensors())
                  if t is not self.embed]  # fmt: skip
        for layer in self.layers:
            found.extend(block_tensors(layer))
        return found


class Decoder:
    """A frozen model. Its methods may be called with or without gradients."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.embed.device
        self.dtype = weights.embed.dtype
        self.steady = getattr(weights.unembed, "steady", False)
        """Whether a token's bits must not depend on who shares its batch."""
        self.stream = self.dtype
        """The dtype of the residual stream, which may be wider than that of the blocks."""
        self.parameters = sum(tensor.numel() for tensor in weights.tensors())
        self.nbytes = sum(tensor.nbytes for tensor in weights.tensors())
        wanted = [None if mixer is None else mixer.rope for mixer in config.attends]
        self._ropes = [Rope(rope, self.device) for rope in _distinct(wanted)]
        self._rope_of = [None if r is None else _distinct(wanted).index(r) for r in wanted]

    def hidden(
        self, tokens: Tensor, positions: Tensor, attend: Attend, lora: Lora | None = None,
        recur: Recur | None = None, on_routes: Routed | None = None,
    ) -> Tensor:  # fmt: skip
        """[N] ids at [N] positions to [N, hidden_size], after the final norm. `recur` is needed
        where layers keep a state of every sequence; `on_routes` is told which experts tokens go
        to."""
        x, run = self.entered(tokens, positions, attend, lora, recur, on_routes)
        return self.left(self.through(x, run, range(len(self.config.layers))))

    def entered(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        lora: Lora | None = None,
        recur: Recur | None = None,
        on_routes: Routed | None = None,
        replayed: Replayed | None = None,
        stream: torch.dtype | None = None,
    ) -> tuple[Tensor, Pass]:
        """The stream before the first layer, and what every layer needs to know of the pass.
        `replayed` says which experts tokens must go to, `stream` what dtype the stream is kept in
        if it is not `self.stream`."""
        x = F.embedding(tokens, self.weights.embed)
        if self.config.embed_scale != 1.0:
            x = x * torch.tensor(self.config.embed_scale, dtype=x.dtype)
        angles = self.angles(positions, self.dtype)
        run = Pass(attend, lora, angles, recur, on_routes, replayed)
        return x.to(stream or self.stream), run

    def through(
        self, x: Tensor, run: Pass, layers: range, recompute: bool = False,
        keep_attention: bool = False,
    ) -> Tensor:  # fmt: skip
        """The stream after these layers.

        `recompute` keeps only each layer's input for the backward pass and computes the rest
        again: about a third more time for a fraction of the memory. `keep_attention` keeps what
        attention gives too, which of long sequences takes longest to compute.
        """
        for index in layers:
            if recompute and torch.is_grad_enabled():
                x = checkpoint(
                    self._layer, index, x, run, use_reentrant=False, preserve_rng_state=False,
                    context_fn=attention_kept if keep_attention else noop_context_fn,
                )  # fmt: skip
            else:
                x = self._layer(index, x, run)
        return x

    def left(self, x: Tensor) -> Tensor:
        """What the head is given: the stream after the last layer and the final norm."""
        return rms_norm(x, self.weights.final_norm, self.config.norm_eps, self.dtype)

    def unembed(self, hidden: Tensor, lora: Lora | None = None) -> Tensor:
        """[n, hidden_size] to logits [n, vocab_size], in float32 on a GPU whatever the model is."""
        if lora is None:
            return logits(hidden, self.weights.unembed)
        return lora.project(UNEMBED_LAYER, UNEMBED, hidden, self.weights.unembed, None)

    def _layer(self, index: int, x: Tensor, run: Pass) -> Tensor:
        layer = self.weights.layers[index]
        x = self._block(index, layer.mixer, x, (layer.input_norm, layer.mixer_norm), run)
        return self._block(index, layer.mlp, x, (layer.post_norm, layer.mlp_norm), run)

    def _block(
        self, index: int, block: Block, x: Tensor, norms: tuple[Tensor | None, Tensor | None],
        run: Pass,
    ) -> Tensor:  # fmt: skip
        """The stream after one block, whose input and output these norms are for."""
        before, after = norms
        eps, scale = self.config.norm_eps, self.config.residual_scale
        normed = x.to(self.dtype) if before is None else rms_norm(x, before, eps, self.dtype)
        shared = self.config.shard is not None
        if after is None and scale == 1.0 and not shared:
            return block.forward(index, normed, x, run)
        if shared:
            out = self._summed_over_ranks(index, block, normed, run)
        else:
            out = block.forward(index, normed, torch.zeros_like(x), run)
        out = out if after is None else rms_norm(out, after, eps)
        return torch.add(x, out, alpha=scale)

    def _summed_over_ranks(self, index: int, block: Block, normed: Tensor, run: Pass) -> Tensor:
        from tinkex.engine import collectives

        share = block.forward(index, collectives.enter(normed), torch.zeros_like(normed), run)
        return collectives.summed(share)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> list[Angles | None]:
        made = [rope.angles(positions, dtype) for rope in self._ropes]
        return [None if rope is None else made[rope] for rope in self._rope_of]


_ATTENTIONS = (
    "_flash_attention_forward",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)


def attention_kept() -> Any:
    """What a recomputed layer does not compute again; versions of torch differ in what there is."""
    ops = torch.ops.aten
    kept = [getattr(ops, name).default for name in _ATTENTIONS if hasattr(ops, name)]
    return create_selective_checkpoint_contexts(kept)


def _distinct(ropes: list[RopeConfig | None]) -> list[RopeConfig]:
    found: list[RopeConfig] = []
    for rope in ropes:
        if rope is not None and rope not in found:
            found.append(rope)
    return found
