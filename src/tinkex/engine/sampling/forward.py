"""The passes of a sampler: hidden states of scheduled tokens, and logits of some of their rows.

Also the faster passes for steps of single tokens, where there are any. Knows versions and pages,
nothing of requests' results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.passes import Lora
from tinkex.engine.model.products import FrozenProducts
from tinkex.engine.sampling.adapters import Version
from tinkex.engine.sampling.cache.kept_attention import KeptAttention
from tinkex.engine.sampling.cache.kept_rows import KeptRows, can_keep
from tinkex.engine.sampling.cache.kv_cache import KeyValueCache
from tinkex.engine.sampling.cache.recurrent_states import SequenceStates
from tinkex.engine.sampling.cpu_decode.decode import CpuDecode, is_plain
from tinkex.engine.sampling.draw import Drawer
from tinkex.engine.sampling.paged_attention import PagedAttention
from tinkex.engine.sampling.projection import Projection, Stacks, spans_of
from tinkex.engine.sampling.scheduling.chunks import Chunk
from tinkex.engine.to_device import to_device

if TYPE_CHECKING:
    from tinkex.engine.sampling.device_attention import DeviceAttention
    from tinkex.engine.sampling.gpu_decode.graph import DecodeGraphs
    from tinkex.engine.sampling.gpu_decode.prompts import PromptGraphs
    from tinkex.engine.sampling.steady.attention import SteadyPagedAttention


class Forward:
    def __init__(
        self, decoder: Decoder, cache: KeyValueCache, states: SequenceStates | None, context: int
    ) -> None:
        self._decoder, self._cache, self._states = decoder, cache, states
        self._frozen = FrozenProducts(decoder.weights)
        self._stacks = Stacks()
        keeps = can_keep(decoder.config, decoder.device, decoder.dtype)
        self._kept = KeptRows(cache, decoder.config) if keeps else None
        self._prompts = _prompt_graphs(decoder, cache, context, states)

    @property
    def free_rows(self) -> int:
        """Tokens up to which a pass takes no longer than for a single token."""
        return self._frozen.free_rows

    def prepare(self) -> bool:
        """Prepare a piece of what the first pass needs; False if nothing is left."""
        if self._frozen.prepare():
            return True
        return self._prompts is not None and self._prompts.prepare()

    def hidden(self, chunks: Sequence[Chunk]) -> Tensor:
        """Hidden states of the concatenated chunks' tokens, then rows that only pad. Fills their
        pages. The next pass may overwrite the result."""
        captured = None if self._prompts is None else self._prompts.hidden(chunks)
        if captured is not None:
            return captured
        lengths = [chunk.stop - chunk.start for chunk in chunks]
        rows = max(sum(lengths), self._frozen.min_rows)
        tokens, positions = _laid_out(chunks, lengths, rows)
        device, decoder = self._decoder.device, self._decoder
        projection = self._projection([c.branch.request.version for c in chunks], lengths, rows)
        attend = self._attention(chunks, rows)
        recur = None if self._states is None else self._states.begin(chunks)
        return decoder.hidden(
            to_device(tokens, device),
            to_device(positions, device),
            attend,
            projection,
            on_routes=self._cache.note_routes(attend.places),
            recur=recur,
        )

    def logits(self, hidden: Tensor, versions: Sequence[Version]) -> Tensor:
        """Float32 logits of rows; rows of one version must be next to each other."""
        count = len(hidden)
        short = self._frozen.min_rows - count
        if short > 0:
            hidden = torch.cat([hidden, hidden.new_zeros(short, hidden.shape[1])])
        projection = self._projection(versions, [1] * len(versions), len(hidden))
        return self._decoder.unembed(hidden, projection)[:count].float()

    def _attention(
        self, chunks: Sequence[Chunk], rows: int
    ) -> KeptAttention | PagedAttention | DeviceAttention | SteadyPagedAttention:
        decoder, device = self._decoder, self._decoder.device
        if decoder.steady:
            from tinkex.engine.sampling.steady.attention import SteadyPagedAttention

            return SteadyPagedAttention(self._cache, decoder.config, chunks, device)
        if self._kept is not None and len(chunks) == rows and self._kept.follow(chunks):
            return KeptAttention(self._kept)
        if runs_triton(decoder.weights.embed):
            from tinkex.engine.sampling.device_attention import DeviceAttention

            return DeviceAttention(self._cache, decoder.config.windows, chunks, device)
        return PagedAttention(self._cache, decoder.config, chunks, rows, device, decoder.dtype)

    def _projection(
        self, versions: Sequence[Version], lengths: Sequence[int], rows: int
    ) -> Lora | None:
        if self._decoder.steady:
            from tinkex.engine.sampling.steady.projection import steady_projection

            config, device = self._decoder.config, self._decoder.device
            return steady_projection(config, versions, lengths, rows, device)
        spans = spans_of(versions, lengths)
        return Projection(self._frozen, spans, self._stacks, self._decoder.device)


def cpu_decode(decoder: Decoder, cache: KeyValueCache) -> CpuDecode | None:
    """The numpy decode steps; None for a model that cannot use them."""
    keeps = can_keep(decoder.config, decoder.device, decoder.dtype)
    return CpuDecode(decoder, cache) if keeps and is_plain(decoder) else None


def decode_graphs(
    decoder: Decoder, cache: KeyValueCache, drawer: Drawer, rows: int, context: int,
    states: SequenceStates | None,
) -> DecodeGraphs | None:  # fmt: skip
    """The captured decode steps; None without a GPU or Triton."""
    if decoder.device.type != "cuda":
        return None
    try:
        from tinkex.engine.sampling.gpu_decode.graph import DecodeGraphs
    except ImportError:
        return None
    return DecodeGraphs(decoder, cache, drawer, rows, context, states)


def _prompt_graphs(
    decoder: Decoder, cache: KeyValueCache, context: int, states: SequenceStates | None
) -> PromptGraphs | None:
    """The captured prompt passes; None without graphs, or for a pass that is too large for them."""
    if decoder.device.type != "cuda" or decoder.steady or states is not None:
        return None
    try:
        from tinkex.engine.sampling.gpu_decode.prompts import PromptGraphs
    except ImportError:
        return None
    return PromptGraphs(decoder, cache, context)


def _laid_out(chunks: Sequence[Chunk], lengths: Sequence[int], rows: int) -> tuple[Tensor, Tensor]:
    """The chunks' tokens concatenated, and their positions, padded to so many rows."""
    pad = [0] * (rows - sum(lengths))
    if len(chunks) == sum(lengths):
        tokens = [chunk.branch.token(chunk.start) for chunk in chunks]
        return torch.tensor(tokens + pad), torch.tensor([chunk.start for chunk in chunks] + pad)
    parts = [chunk.tokens() for chunk in chunks]
    places = [np.arange(chunk.start, chunk.stop) for chunk in chunks]
    laid = np.concatenate([*parts, pad]).astype(np.int64)
    return torch.from_numpy(laid), torch.from_numpy(np.concatenate([*places, pad]).astype(np.int64))
