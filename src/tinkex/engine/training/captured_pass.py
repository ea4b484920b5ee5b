"""Small training passes as captured graphs, because launching their kernels one by one costs most.

A forward pass over a few hundred packed tokens, and the backward pass after it, are thousands of
kernels of microseconds each. For every number of tokens (rounded up), of adapters and of ranks they
are captured once and replayed: tokens, sequences and the table of adapters are numbers in fixed
buffers. What is between the two, logits and losses, is not captured. Needs a GPU and Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.cuda import CUDAGraph, Stream
from torch.nn import functional as F

from tinkex.engine.adapters.grouped import LEAST_RANK, LoraTable, Shape, TableLora, table_slots
from tinkex.engine.adapters.packed import Segment
from tinkex.engine.kernels.steady.attention import split_of
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.passes import Attend
from tinkex.engine.to_device import to_device
from tinkex.engine.training.steady_attention import PackedTiles, SteadyAttention

BUCKETS = (64, 128, 256, 512, 1024)
"""Sizes of captured passes in tokens. Larger passes keep the device busy without capture."""

GROUPS = (1, 8, 32)
"""Sizes of captured passes in adapters."""

_TOKENS, _POSITIONS, _SEQUENCES = range(3)


@dataclass(frozen=True, slots=True)
class Bucket:
    rows: int
    groups: int
    shape: Shape


@dataclass(slots=True)
class _Captured:
    inputs: Tensor  # tokens, positions and sequences of its rows, written before a replay
    table: LoraTable  # adapters it reads, written likewise
    forward: CUDAGraph  # recorded
    hidden: Tensor  # what the forward leaves
    gradient: Tensor  # of `hidden`, written before the backward
    backward: CUDAGraph  # recorded
    tiles: PackedTiles | None
    """Of sequences, in steady mode."""


class CapturedPass:
    """One pass under way. Its hidden states are there until the next pass begins."""

    def __init__(self, captured: _Captured, count: int) -> None:
        self._captured = captured
        self.hidden = captured.hidden[:count].detach()

    def backward(self, gradient: Tensor) -> Iterable[None]:
        """Add the adapters' gradients, given the loss's by the hidden states, at once."""
        self._captured.gradient.zero_()
        self._captured.gradient[: len(gradient)].copy_(gradient)
        self._captured.backward.replay()
        return ()


class CapturedPasses:
    def __init__(self, decoder: Decoder, max_rows: int) -> None:
        """`max_rows` bounds the memory that the largest bucket keeps permanently."""
        self._decoder = decoder
        self._buckets = [size for size in BUCKETS if size <= max_rows]
        self._found: dict[Bucket, _Captured] = {}
        # All share it: a pass is over, backward too, before another one begins.
        self._pool = torch.cuda.graph_pool_handle()

    def takes(self, rows: int, segments: int) -> bool:
        """Whether there are captured graphs for so many tokens of so many segments."""
        return rows <= max(self._buckets, default=0) and segments <= GROUPS[-1]

    def bucket(self, rows: int, segments: Sequence[Segment]) -> Bucket | None:
        """The bucket for so many tokens; None if there is none."""
        if not self.takes(rows, len(segments)):
            return None
        return Bucket(
            next(size for size in self._buckets if size >= rows),
            next(size for size in GROUPS if size >= len(segments)),
            Shape.of(segments),
        )

    def run(
        self, bucket: Bucket, data: Sequence[NDArray[np.int64]], segments: Sequence[Segment]
    ) -> CapturedPass:
        """The forward pass over these sequences of tokens, packed."""
        captured = self._found.get(bucket)
        if captured is None:
            captured = self._found[bucket] = self._capture(bucket)
        lengths = [len(tokens) for tokens in data]
        count = sum(lengths)
        numbers = np.zeros((3, bucket.rows), np.int64)
        numbers[_SEQUENCES] = -1
        numbers[_TOKENS, :count] = np.concatenate(data)
        numbers[_POSITIONS, :count] = np.concatenate([np.arange(length) for length in lengths])
        numbers[_SEQUENCES, :count] = np.repeat(np.arange(len(lengths)), lengths)
        captured.inputs.copy_(to_device(numbers, self._decoder.device))
        captured.table.fill(segments)
        if captured.tiles is not None:
            captured.tiles.fill(lengths)
        captured.forward.replay()
        return CapturedPass(captured, count)

    def prepare(self) -> bool:
        """Capture one more pass that is likely to be needed; False if all are captured."""
        for groups in GROUPS[:2]:
            for rows in self._buckets:
                bucket = Bucket(rows, groups, Shape(LEAST_RANK, True))
                if bucket not in self._found:
                    self._found[bucket] = self._capture(bucket)
                    return True
        return False

    def _capture(self, bucket: Bucket) -> _Captured:
        decoder, device = self._decoder, self._decoder.device
        inputs = torch.zeros(3, bucket.rows, dtype=torch.int64, device=device)
        table = LoraTable(table_slots(decoder.config), bucket.rows, bucket.groups, device)
        gradient = torch.zeros(
            bucket.rows, decoder.config.hidden_size, dtype=decoder.dtype, device=device
        )
        lora = TableLora(table, (), bucket.shape, device, steady=decoder.steady)
        group = decoder.config.attention.group
        tiles = PackedTiles(bucket.rows, group, device) if decoder.steady else None

        def forward() -> Tensor:
            attend = _attention(inputs, tiles, decoder)
            return decoder.hidden(inputs[_TOKENS], inputs[_POSITIONS], attend, lora)

        # Kernels compile and libraries set themselves up on first use: not while capturing.
        side = Stream(device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.enable_grad():
            torch.autograd.backward([forward()], [gradient])
        torch.cuda.current_stream().wait_stream(side)
        ahead, back = CUDAGraph(), CUDAGraph()
        mode = {"pool": self._pool, "capture_error_mode": "thread_local"}
        with torch.enable_grad():
            with torch.cuda.graph(ahead, **mode):  # type: ignore[arg-type]  # one dict of two types
                hidden = forward()
            with torch.cuda.graph(back, **mode):  # type: ignore[arg-type]  # one dict of two types
                torch.autograd.backward([hidden], [gradient])
        return _Captured(inputs, table, ahead, hidden.detach(), gradient, back, tiles)


def _attention(inputs: Tensor, tiles: PackedTiles | None, decoder: Decoder) -> Attend:
    if tiles is None:
        return _MaskedAttention(inputs, decoder)
    windows, split = decoder.config.windows, split_of(decoder.config.max_context)
    return SteadyAttention(tiles.queries, tiles.keys, windows, split, inputs.shape[1])


class _MaskedAttention:
    """An `Attend` over all rows at once, by masks: who sees whom is read from the device."""

    def __init__(self, inputs: Tensor, decoder: Decoder) -> None:
        self._windows = decoder.config.windows
        positions, sequences = inputs[_POSITIONS], inputs[_SEQUENCES]
        distance = positions[:, None] - positions[None, :]
        seen = (sequences[:, None] == sequences[None, :]) & (distance >= 0)
        self._masks = {
            window: _additive(seen if window is None else seen & (distance < window), decoder.dtype)
            for window in set(self._windows)
        }

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        assert sinks is None, "captured passes hold no sinks: see ModelConfig.capturable"
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        mask = self._masks[self._windows[layer]]
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return mixed[0].transpose(0, 1)


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, -torch.inf)[None, None]
