"""The last step of a training pass: from hidden states to logprobs and back, in blocks.

Logits exist only for a block of tokens at a time, so memory does not grow with tokens times
vocabulary. A block's gradient is taken while its logits are at hand; nothing is kept for later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.adapters.packed import PackedLora, Segment, add_gradients
from tinkex.engine.cpu.threads import logsumexp
from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.losses.inputs import CheckedDatum
from tinkex.engine.model.config import slots
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.matrices import frozen
from tinkex.engine.model.matrices.frozen import Matrix
from tinkex.engine.model.slots import UNEMBED, UNEMBED_LAYER
from tinkex.engine.to_device import to_device
from tinkex.engine.training.packing import SOLO_TOKENS

Slopes = Callable[[int, int, Tensor], Tensor]
"""(first cell, last cell + 1, their logprobs) -> d loss / d logprob of each."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The targets of a micro-batch: cell c asks for `targets[c]` after token `rows[c]`.

    Token r's cells are [starts[r], starts[r + 1]). `live` marks the cells that may have a slope.
    All on the host.
    """

    rows: NDArray[np.int64]
    targets: NDArray[np.int64]
    starts: NDArray[np.int64]
    live: NDArray[np.bool_]

    @classmethod
    def of(cls, data: Sequence[CheckedDatum]) -> Cells:
        """The cells of these sequences, concatenated."""
        widths = np.concatenate(
            [np.full(len(d.tokens), d.targets.size // len(d.tokens)) for d in data]
        )
        return cls(
            rows=np.repeat(np.arange(len(widths)), widths),
            targets=np.concatenate([datum.targets for datum in data]),
            starts=np.concatenate([[0], np.cumsum(widths)]).astype(np.int64),
            live=np.concatenate([datum.live for datum in data]),
        )


@dataclass(slots=True)
class _Block:
    """Logits of some tokens, and the cells that belong to them, rows counted from the first."""

    x: Tensor  # hidden states of the tokens
    logits: Tensor  # theirs
    norm: Tensor  # logarithms of the sums of their exponentials
    rows: Tensor  # token of each cell, counted from the first
    targets: Tensor  # token id of each cell
    lora: PackedLora  # of the tokens, for the head's adapter


class Head:
    """Logprobs of a micro-batch's cells, and the gradient of its hidden states."""

    def __init__(self, decoder: Decoder, lora: PackedLora, cells: Cells, block_rows: int) -> None:
        self._decoder, self._lora, self._cells = decoder, lora, cells
        self._block_rows = block_rows
        self._rows = to_device(cells.rows, decoder.device)
        self._targets = to_device(cells.targets, decoder.device)

    @torch.no_grad()
    def run(
        self, hidden: Tensor, first: int, last: int, slopes: Slopes | None, into: Tensor | None
    ) -> Tensor:
        """Logprobs of all cells of tokens [first, last).

        With `slopes`, the gradient of the loss by the hidden states is written to those rows of
        `into`, which must be zero, and the unembedding's adapters get theirs.
        """
        found = []
        for start in range(first, last, self._block_rows):
            stop = min(start + self._block_rows, last)
            block = self._forward(hidden, start, stop)
            chosen = block.logits[block.rows, block.targets].float()
            logprobs = chosen - block.norm[block.rows]
            found.append(logprobs)
            if slopes is not None and into is not None:
                self._backward(block, start, stop, slopes, logprobs, into)
        return torch.cat(found)

    def _forward(self, hidden: Tensor, start: int, stop: int) -> _Block:
        low, high = self._cells.starts[start], self._cells.starts[stop]
        segments = _within(self._lora.segments, start, stop)
        x = hidden[start:stop]
        lora = self._lora_of(segments, x)
        logits, norm = _normed(self._decoder.unembed(x, lora))
        rows = self._rows[low:high] - start
        return _Block(x, logits, norm, rows, self._targets[low:high], lora)

    def _lora_of(self, segments: Sequence[Segment], x: Tensor) -> PackedLora:
        if not (self._decoder.steady and any(UNEMBED in segment.factors for segment in segments)):
            return PackedLora(segments, x.device)
        from tinkex.engine.adapters.grouped import steady_lora

        own = {UNEMBED: slots(self._decoder.config)[UNEMBED]}
        return steady_lora(segments, own, len(x), x.device)

    def _backward(
        self,
        block: _Block,
        start: int,
        stop: int,
        slopes: Slopes,
        logprobs: Tensor,
        into: Tensor,
    ) -> None:
        low, high = int(self._cells.starts[start]), int(self._cells.starts[stop])
        live = self._cells.live[low:high]
        if not live.any():
            return
        slope = slopes(low, high, logprobs)
        if live.all():
            self._carry_back(block, slope, into[start:stop])
            return
        kept = np.unique(self._cells.rows[low:high][live] - start)
        part = into.new_zeros(len(kept), into.shape[1])
        cells = np.flatnonzero(live)
        less = _keep(block, self._cells.rows[low:high] - start, kept, cells)
        less.lora = self._lora_of(_kept_segments(block.lora.segments, kept), less.x)
        self._carry_back(less, slope[to_device(cells, slope.device)], part)
        into[start:stop].index_copy_(0, to_device(kept, into.device), part)

    def _carry_back(self, block: _Block, slope: Tensor, into: Tensor) -> None:
        """From the slopes of a block's cells to its hidden states and adapters."""
        grad = _logit_gradient(block, slope).to(block.x.dtype)
        _product(grad, self._decoder.weights.unembed, into)
        if self._decoder.steady:
            _add_steady_gradients(block, grad, into)
            return
        for segment in block.lora.segments:
            factors = segment.factors.get(UNEMBED)
            if factors is not None:
                part = slice(segment.start, segment.stop)
                inner = block.x[part] @ factors.a[0].T
                add_gradients(
                    segment, UNEMBED_LAYER, UNEMBED, block.x[part], inner, grad[part], into[part]
                )


def _normed(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The logits, in float32 unless kernels take them as they are, and each row's logsumexp."""
    if runs_triton(logits):
        from tinkex.engine.kernels import logprobs as head_kernel

        return logits, head_kernel.logsumexp(logits)
    logits = logits.float()
    return logits, logsumexp(logits)


def _product(left: Tensor, right: Matrix, into: Tensor) -> None:
    """left @ right. Few rows are padded with zeros: see `SOLO_TOKENS`."""
    missing = SOLO_TOKENS - len(left)
    if missing > 0:
        left = F.pad(left, (0, 0, 0, missing))
    into.copy_(frozen.times(left, right)[: len(into)])


def _logit_gradient(block: _Block, slope: Tensor) -> Tensor:
    """The gradient of Σ slope · logprob by the logits, written over them: slope · (one-hot −
    softmax)."""
    if runs_triton(block.logits):
        from tinkex.engine.kernels import logprobs as head_kernel

        ends = torch.arange(len(block.norm) + 1, device=block.rows.device)
        starts = torch.searchsorted(block.rows, ends)
        return head_kernel.logit_gradient_(block.logits, block.norm, starts, block.targets, slope)
    total = torch.zeros_like(block.norm).index_add_(0, block.rows, slope)
    gradient = block.logits.sub_(block.norm[:, None]).exp_().mul_(-total[:, None])
    return gradient.index_put_((block.rows, block.targets), slope, accumulate=True)


def _keep(
    block: _Block, rows: NDArray[np.int64], kept: NDArray[np.int64], cells: NDArray[np.int64]
) -> _Block:
    """The block with only the tokens `kept` and of its cells only `cells`."""
    device = block.x.device
    places = to_device(kept, device)
    return _Block(
        block.x[places],
        block.logits[places],
        block.norm[places],
        to_device(np.searchsorted(kept, rows[cells]), device),
        block.targets[to_device(cells, device)],
        block.lora,
    )


def _kept_segments(segments: Sequence[Segment], kept: NDArray[np.int64]) -> list[Segment]:
    """What is left of the segments with only the tokens `kept`."""
    bounds = kept.tolist()
    found = [
        replace(s, start=bisect_left(bounds, s.start), stop=bisect_left(bounds, s.stop))
        for s in segments
    ]
    return [segment for segment in found if segment.start < segment.stop]


def _add_steady_gradients(block: _Block, grad: Tensor, into: Tensor) -> None:
    from tinkex.engine.adapters.grouped import TableLora

    if isinstance(block.lora, TableLora):
        thin = block.lora.shrunk(UNEMBED_LAYER, UNEMBED, block.x)
        block.lora.add_gradients(UNEMBED_LAYER, UNEMBED, block.x, thin, grad, into)


def _within(segments: Sequence[Segment], start: int, stop: int) -> list[Segment]:
    """The segments' parts within [start, stop), counted from start."""
    clipped = [
        replace(s, start=max(s.start, start) - start, stop=min(s.stop, stop) - start)
        for s in segments
    ]
    return [segment for segment in clipped if segment.start < segment.stop]
