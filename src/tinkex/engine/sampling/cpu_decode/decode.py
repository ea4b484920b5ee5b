"""Decode steps of a small model in numpy, because torch's overhead per operation is most of them.

The same arithmetic as `model.decoder` for the plain kind of model that `is_plain` describes, over
single tokens of rows whose keys are kept (`cache.kept_rows`), and over prompts (`mixing`) without
prompt logprobs. All other models, and all other prompts, use the decoder itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.cpu.onednn import LARGE_MATRIX
from tinkex.engine.model.blocks.attention import Attention
from tinkex.engine.model.blocks.dense_mlp import DenseMlp
from tinkex.engine.model.decoder import Decoder, Layer
from tinkex.engine.model.slots import UNEMBED, UNEMBED_LAYER
from tinkex.engine.sampling.cache.kept_rows import Floats, KeptRows
from tinkex.engine.sampling.cache.kv_cache import KeyValueCache
from tinkex.engine.sampling.cpu_decode.draw import CpuDraw
from tinkex.engine.sampling.cpu_decode.layer import Mix, PlainLayer, Product, normed
from tinkex.engine.sampling.cpu_decode.matrices import MergedMatrices
from tinkex.engine.sampling.cpu_decode.mixing import KeptMix, PromptMix, takes_prompts
from tinkex.engine.sampling.projection import spans_of
from tinkex.engine.sampling.request import Branch
from tinkex.engine.sampling.scheduling.chunks import Chunk

Integers: TypeAlias = list[int] | NDArray[np.integer]


def is_plain(decoder: Decoder) -> bool:
    """Whether a model is of this kind: dense and small, no scales, no gates, no further norms."""
    config, weights = decoder.config, decoder.weights
    scaled = config.embed_scale != 1.0 or config.residual_scale != 1.0
    if scaled or config.shard is not None or decoder.steady:
        return False
    matrices = (weight for _, weight, _ in weights.products())
    small = all(isinstance(m, Tensor) and m.numel() < LARGE_MATRIX for m in matrices)
    tensors = weights.tensors()
    float32 = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return small and float32 and all(map(_is_plain, weights.layers))


def _is_plain(layer: Layer) -> bool:
    mixer, mlp = layer.mixer, layer.mlp
    if not isinstance(mixer, Attention) or not isinstance(mlp, DenseMlp) or mlp.config.gelu:
        return False
    config = mixer.config
    odd = config.gated or config.wide_norms or config.sinks or config.scale or config.window
    turned = config.rope is not None and config.rope.head_dim == config.head_dim
    before = layer.input_norm is not None and layer.post_norm is not None
    return turned and not odd and before and layer.mixer_norm is None and layer.mlp_norm is None


class CpuDecode:
    """The decode steps of one model."""

    _product: Product

    def __init__(self, decoder: Decoder, cache: KeyValueCache) -> None:
        self._cache, self._rows = cache, KeptRows(cache, decoder.config)
        weights, self._eps = decoder.weights, decoder.config.norm_eps
        self._embed = weights.embed.numpy()
        layers = enumerate(weights.layers)
        self._layers = [PlainLayer(index, layer, self._eps) for index, layer in layers]
        self._matrices = MergedMatrices(weights)
        self._turns, self._draw = _Turns(decoder), CpuDraw(decoder.config.vocab_size)

    def parted(self, chunks: Sequence[Chunk]) -> tuple[Sequence[Chunk], Sequence[Chunk]]:
        """The chunks whose logits can be computed here, and the rest. Equal versions are next to
        each other."""
        single = [c.branch.started and c.stop - c.start == 1 and c.completes for c in chunks]
        if all(single):
            return (chunks, ()) if self._takes(chunks) else ((), chunks)
        singles = list(compress(chunks, single))
        if not singles or not self._takes(singles):
            return (), chunks
        return singles, [chunk for chunk, one in zip(chunks, single, strict=True) if not one]

    def logits(self, chunks: Sequence[Chunk]) -> Floats:
        """Logits after the tokens of the chunks from `parted`. Fills their pages."""
        tokens = [chunk.branch.token(chunk.start) for chunk in chunks]
        x = self._stream(tokens, [c.start for c in chunks], self._product, KeptMix(self._rows))
        return self._unembedded(x, self._product)

    def prompt_logits(self, chunks: Sequence[Chunk]) -> Floats | None:
        """Logits after the last token of each of these prompts. Fills their pages. None, with
        nothing done, if they are not to be computed here."""
        lengths = [chunk.stop - chunk.start for chunk in chunks]
        product = self._product_of(chunks, lengths) if takes_prompts(chunks) else None
        last = self._product_of(chunks, [1] * len(chunks))
        if product is None or last is None:
            return None
        tokens = np.concatenate([chunk.tokens() for chunk in chunks])
        positions = np.concatenate([np.arange(chunk.start, chunk.stop) for chunk in chunks])
        x = self._stream(tokens, positions, product, PromptMix(self._cache, chunks))
        return self._unembedded(x[np.cumsum(lengths) - 1], last)

    def drawn(
        self, branches: Sequence[Branch], logits: Floats
    ) -> tuple[list[int], list[float]] | None:
        """The next token of each, and its logprob; None if any draws from other than the model's
        own distribution, or a part of it."""
        if any(branch.request.shaped for branch in branches):
            return None
        with np.errstate(all="ignore"):
            return self._draw.drawn(branches, logits)

    def _stream(self, tokens: Integers, positions: Integers, product: Product, mix: Mix) -> Floats:
        """The stream after the last layer, [tokens, hidden]."""
        x: Floats = self._embed[tokens]
        turns = self._turns.at(positions)
        with np.errstate(all="ignore"):  # numbers that are not finite show in the logprob
            for layer, turn in zip(self._layers, turns, strict=True):
                layer.add_to(x, product, turn, mix)
        return x

    def _unembedded(self, x: Floats, product: Product) -> Floats:
        with np.errstate(all="ignore"):
            return product(normed(x, self._eps), (UNEMBED_LAYER, UNEMBED))

    def _takes(self, chunks: Sequence[Chunk]) -> bool:
        """Whether these can be computed here: not with too many versions, or rows too long to be
        kept."""
        product = self._product_of(chunks)
        if product is None or not self._rows.follow(chunks):
            return False
        self._product = product
        return True

    def _product_of(
        self, chunks: Sequence[Chunk], lengths: Sequence[int] | None = None
    ) -> Product | None:
        """The product with each chunk's own matrices; None if there are too many versions."""
        spans = spans_of([chunk.branch.request.version for chunk in chunks], lengths)
        matrices = self._matrices.of([span.version for span in spans])
        return None if matrices is None else Product(matrices, [span.stop for span in spans])


class _Turns:
    """Cosines and sines by layer and position, made for twice as many as were needed."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._made: list[tuple[Floats, Floats]] = []
        self._count = 0

    def at(self, positions: Integers) -> list[tuple[Floats, Floats]]:
        """By layer, each [rows, 1, head size]."""
        if (last := int(max(positions))) >= self._count:
            self._make(2 * last + 2)
        looked_up = {id(made[0]): (made[0][positions], made[1][positions]) for made in self._made}
        return [looked_up[id(made[0])] for made in self._made]

    def _make(self, count: int) -> None:
        found = self._decoder.angles(torch.arange(count), torch.float32)
        arrays = {id(turn): (turn[0].numpy(), turn[1].numpy()) for turn in found if turn}
        self._made = [arrays[id(turn)] for turn in found]
        self._count = count
