"""Decode steps as captured graphs: the next token of every branch in one launch.

A step in which every branch gets exactly one token always runs the same kernels; only numbers in
fixed buffers differ. Such a step is captured once per number of rows (rounded up) and replayed, in
two graphs: the forward pass, and the draw. Where a row's draw has a mask, which is known only when
the token before it is, the draw follows later: while the mask is made, the device computes the
forward pass. Steps with prompt chunks are not for this module. Needs a GPU and Triton.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.cuda import Stream

from tinkex.engine.adapters.grouped import LEAST_RANK, Shape
from tinkex.engine.kernels import dependent_launch
from tinkex.engine.kernels import draw as draw_kernel
from tinkex.engine.kernels import paged_attention as paged_kernel
from tinkex.engine.kernels import row_adapters as adapter_kernel
from tinkex.engine.kernels import token_attention as token_kernel
from tinkex.engine.model.block_configs import AttentionConfig
from tinkex.engine.model.blocks.head_ops import shape_of
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.passes import Angles, Attend, AttendProjected, Lora
from tinkex.engine.sampling.cache.device_states import TokenRecurrence
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, KeyValueCache
from tinkex.engine.sampling.cache.recurrent_states import SequenceStates
from tinkex.engine.sampling.draw import Drawer
from tinkex.engine.sampling.gpu_decode.adapter_table import AdapterTable
from tinkex.engine.sampling.gpu_decode.products import AdapterProducts, BareProducts
from tinkex.engine.sampling.gpu_decode.rows import (
    HEAT,
    KEYS,
    MASKED,
    OWNERS,
    PLACES,
    POSITIONS,
    SEGMENTS,
    STATES,
    TOKENS,
    DecodeRows,
)
from tinkex.engine.sampling.projection import spans_of
from tinkex.engine.sampling.request import Branch
from tinkex.engine.sampling.scheduling.chunks import Chunk
from tinkex.engine.sampling.steady.attention import SteadyTokenAttention
from tinkex.engine.sampling.steady.decode import LIKELY, SteadyAdapters
from tinkex.engine.sampling.steady.draw import logprobs_of

_LIKELY_RANKS = (LEAST_RANK, 64)
"""Of adapters for which steps are captured before anybody asks; smaller ranks share the first."""


@dataclass(frozen=True, slots=True)
class _Captured:
    forward: torch.cuda.CUDAGraph
    draw: torch.cuda.CUDAGraph
    logits: Tensor
    drawn: Tensor


_Key: TypeAlias = tuple[int, int, Shape | None]
"""Rows, and the rank of adapters, or in steady mode their shape; 0 and None without any."""


class DecodeGraphs:
    def __init__(
        self, decoder: Decoder, cache: KeyValueCache, drawer: Drawer, rows: int, context: int,
        states: SequenceStates | None = None,
    ) -> None:  # fmt: skip
        self._decoder, self._cache, self._drawer = decoder, cache, drawer
        self._states = states
        self._max_rows = rows
        self._buckets = buckets(rows)
        pages = -(-context // PAGE_SIZE) + 1
        vocab = decoder.config.vocab_size
        self._rows = DecodeRows(self._buckets[-1], pages, vocab, decoder.device)
        self._adapters = AdapterTable(decoder.config, self._buckets[-1], decoder.device)
        self._found: dict[_Key, _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._side = Stream(decoder.device, priority=-1)
        self._steady = SteadyAdapters(decoder, self._side) if decoder.steady else None

    def takes(self, chunks: Sequence[Chunk]) -> bool:
        """Whether every chunk is the next token of a branch that draws after it."""
        return len(chunks) <= self._max_rows and all(
            chunk.stop - chunk.start == 1
            and chunk.completes
            and chunk.branch.started
            and chunk.branch.request.version.rank <= adapter_kernel.MAX_RANK
            and (self._states is None or self._states.holds(chunk))
            for chunk in chunks
        )

    def launch(self, branches: Sequence[Branch], after: DecodeStep | None = None) -> DecodeStep:
        """Start the step of these branches, equal versions side by side; does not wait for it.
        Where any has a mask, `draw` has to be called for it.

        `after` is a step of the same branches still under way, whose tokens this one takes.
        """
        spans = spans_of([branch.request.version for branch in branches])
        bucket = next(size for size in self._buckets if size >= len(branches))
        steady = None if self._steady is None else self._steady.fill(bucket, spans)
        tuned = [span for span in spans if span.version.products]
        places = self._adapters.places([span.version for span in tuned])
        ahead, states = 0 if after is None else 1, self._states
        if states is None:
            self._rows.fill(branches, tuned, places, ahead)
        else:
            own = states.advance(branches, ahead)
            self._rows.fill(branches, tuned, places, ahead, own, states.scratch)
        self._rows.upload()
        if after is not None:
            self._rows.numbers[TOKENS, : after.rows].copy_(after.tokens())
        key = (bucket, self._adapters.rank if tuned else 0, steady)
        captured = self._found.get(key)
        if captured is None:
            captured = self._found[key] = self._capture(*key)
        captured.forward.replay()
        step = DecodeStep(branches, captured)
        if not any(branch.masked for branch in branches):
            step.draw()
        return step

    def draw(self, step: DecodeStep, branches: Sequence[tuple[int, Branch]]) -> None:
        """Draw the step launched last, whose rows are these. The tokens before it are known."""
        masks = {row: branch.mask() for row, branch in branches}
        self._rows.upload_masks({row: mask for row, mask in masks.items() if mask is not None})
        step.draw()

    def prepare(self) -> bool:
        """Capture one more step that is likely to be asked for; False if all are."""
        for key in self._likely():
            if key not in self._found:
                # Rows of the step before name pages and adapters that are not for this one.
                self._rows.numbers.zero_()
                with torch.inference_mode():
                    if self._steady is not None:
                        self._steady.forget()
                    self._found[key] = self._capture(*key)
                return True
        return False

    def _likely(self) -> Iterator[_Key]:
        if self._steady is not None:
            yield from ((rows, 0, shape) for shape in (None, LIKELY) for rows in self._buckets)
            return
        yield from ((rows, rank, None) for rank in (0, *_LIKELY_RANKS) for rows in self._buckets)

    def _capture(self, rows: int, rank: int, steady: Shape | None) -> _Captured:
        # Kernels compile and libraries set themselves up on first use: not while capturing. States
        # must not move on by it.
        side = Stream(self._decoder.device)
        own = self._rows.numbers[STATES].clone()
        if self._states is not None:
            self._rows.numbers[STATES] = self._states.scratch
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._draw(self._compute(rows, rank, steady))
        torch.cuda.current_stream().wait_stream(side)
        self._rows.numbers[STATES].copy_(own)
        forward, draw = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward, pool=self._pool, capture_error_mode="thread_local"):
            logits = self._compute(rows, rank, steady)
        with torch.cuda.graph(draw, pool=self._pool, capture_error_mode="thread_local"):
            drawn = self._draw(logits)
        return _Captured(forward, draw, logits, drawn)

    def _compute(self, rows: int, rank: int, steady: Shape | None) -> Tensor:
        """Logits of the rows' tokens. In steady mode products are those of training, one by one."""
        if self._steady is not None:
            return self._layers(rows, rank, steady)
        with dependent_launch.chained(self._decoder.device):
            return self._layers(rows, rank, steady)

    def _layers(self, rows: int, rank: int, steady: Shape | None) -> Tensor:
        view = self._rows.view
        attend: Attend = _Attend(self._cache, self._decoder, self._rows, rows)
        lora: Lora | None = BareProducts()
        if self._steady is not None:
            where = (view(POSITIONS, 1, rows), view(PLACES, 1, rows), self._rows.table)
            attend = SteadyTokenAttention(self._cache, self._decoder.config, *where)
            lora = self._steady.lora(rows, steady)
        if rank:
            segments = view(SEGMENTS, 3, rows)
            owners = view(OWNERS, 1, rows)
            lora = AdapterProducts(
                self._adapters, self._decoder, segments, owners, rank, self._side
            )
        recur = None
        if self._states is not None:
            recur = TokenRecurrence(self._states, view(STATES, 1, rows))
        tokens, positions = view(TOKENS, 1, rows), view(POSITIONS, 1, rows)
        routed = self._cache.note_routes(view(PLACES, 1, rows))
        hidden = self._decoder.hidden(
            tokens, positions, attend, lora, on_routes=routed, recur=recur
        )
        return self._decoder.unembed(hidden, lora)

    def _draw(self, logits: Tensor) -> Tensor:
        rows, view = len(logits), self._rows.view
        keys, heat, masked = view(KEYS, 2, rows), view(HEAT, 1, rows), view(MASKED, 1, rows)
        drawn = draw_kernel.draw(logits, self._drawer.ids, keys, heat, masked, self._rows.masks)
        if self._steady is not None:
            drawn[1] = logprobs_of(logits, drawn[0]).view(torch.int32)
        return drawn


class DecodeStep:
    """A step under way. Its logits are gone once another step is launched; what it drew is not."""

    def __init__(self, branches: Sequence[Branch], captured: _Captured) -> None:
        self.branches, self.rows = branches, len(branches)
        self._captured = captured
        self._there: torch.cuda.Event | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether its draw was started."""
        return self._there is not None

    def draw(self) -> None:
        """Start the draw, by the keys and masks that are on the device."""
        self._captured.draw.replay()
        drawn = self._captured.drawn
        self._drawn = torch.empty(drawn.shape, dtype=drawn.dtype, pin_memory=True)
        self._drawn.copy_(drawn, non_blocking=True)
        self._there = torch.cuda.Event()
        self._there.record()

    def tokens(self) -> Tensor:
        """The drawn tokens on the device, for the step launched next."""
        return self._captured.drawn[0, : self.rows]

    def logits(self, start: int, stop: int) -> Tensor:
        """Float32 logits of rows [start, stop)."""
        return self._captured.logits[start : min(stop, self.rows)].float()

    def drawn(self) -> tuple[list[int], list[float]]:
        """Each row's token, with no regard to top_k and top_p, and its logprob. Waits for them."""
        assert self._there is not None
        self._there.synchronize()
        tokens: list[int] = self._drawn[0, : self.rows].tolist()
        logprobs: list[float] = self._drawn[1, : self.rows].view(torch.float32).tolist()
        return tokens, logprobs


class _Attend(AttendProjected):
    """An `Attend` for single tokens, all numbers on the device."""

    def __init__(self, cache: KeyValueCache, decoder: Decoder, rows: DecodeRows, count: int):
        self._cache, self._windows = cache, decoder.config.windows
        self._table = rows.table
        self._positions = rows.view(POSITIONS, 1, count)
        self._places = rows.view(PLACES, 1, count)
        heads = max((one.kv_heads for one in decoder.config.attends if one is not None), default=0)
        self._counts = token_kernel.counters(count, heads, decoder.device)

    def projected(
        self, layer: int, qkv: tuple[Tensor, Tensor | None], norms: tuple[Tensor, Tensor] | None,
        angles: Angles | None, sinks: Tensor | None, config: AttentionConfig,
    ) -> Tensor:  # fmt: skip
        pages = token_kernel.Pages(
            self._cache.tokens(layer), self._places, self._table, self._positions, PAGE_SIZE,
            self._windows[layer],
        )  # fmt: skip
        shape = shape_of(config)
        return token_kernel.attend(*qkv, norms, angles, sinks, shape, pages, self._counts)

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        tokens = self._cache.tokens(layer)
        paged_kernel.write(tokens, self._places, k, v)
        return paged_kernel.attend(
            q, tokens, self._table, self._positions, PAGE_SIZE, self._windows[layer], sinks
        )


def buckets(rows: int) -> list[int]:
    """Numbers of rows a step is rounded up to: powers of two, and from 16 on one between each."""
    sizes, size = [], 1
    while size < rows:
        sizes.append(size)
        if size >= 16 and size * 3 // 2 < rows:
            sizes.append(size * 3 // 2)
        size *= 2
    return [*sizes, rows]
