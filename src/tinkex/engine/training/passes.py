"""Training passes: hidden states of packed tokens, and the backward pass that follows.

On a GPU small passes are replayed graphs. All others run operation by operation, long ones in
several stretches of layers. Knows segments and adapters, nothing of calls or losses.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.adapters.packed import PackedLora, Segment
from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.limits import Limits
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.passes import Attend, Replayed, Routed
from tinkex.engine.to_device import to_device
from tinkex.engine.training.attention import LONG, PackedAttention
from tinkex.engine.training.eager_pass import EagerPass, Stretches
from tinkex.engine.training.long_attention import LongAttention, tried
from tinkex.engine.training.recurrence import packed_recurrence

if TYPE_CHECKING:
    from tinkex.engine.training.captured_pass import CapturedPasses


_LEAST_TOKENS = 2048

_LIGHT = 8
"""So many light passes fit in the memory that is planned for one."""


class Pass(Protocol):
    """A forward pass over packed tokens, and the backward pass that may follow."""

    @property
    def hidden(self) -> Tensor: ...

    def backward(self, gradient: Tensor) -> Iterable[None]:
        """Add the adapters' gradients, given the loss's by the hidden states. The result is a
        generator; the device may be used for other work at each step."""
        ...


class Passes:
    def __init__(self, decoder: Decoder, limits: Limits) -> None:
        self.decoder, self._limits = decoder, limits
        self._triton = runs_triton(decoder.weights.embed)
        self._captured = self._captured_passes()
        self._compiling = self._likely_kernels()
        self._long: LongAttention | None = None
        self._stretches = Stretches(decoder.config, decoder.device)
        self._recurs = bool(decoder.config.recurrent)
        self._mixes = decoder.config.mixes

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of a pass. On a GPU smaller passes that keep all they need are faster than larger
        ones that recompute it, as long as the device stays busy."""
        wanted = self._limits.micro_batch_tokens
        if self.decoder.device.type != "cuda":
            return wanted
        fitting = self._limits.activation_bytes // self._kept
        return min(wanted, fitting) if fitting >= _LEAST_TOKENS else wanted

    def prepare(self) -> bool:
        """Prepare a piece of what first passes need; False if nothing is left."""
        if self._captured is not None and self._captured.prepare():
            return True
        known, self._long = self._long, self._for_long()
        return known is None

    def compile_more(self) -> bool:
        """Compile a kernel that adapters of other ranks may need; False if none is left."""
        return any(True for _ in self._compiling)

    def stretches(self, lengths: Sequence[int], segments: int = 1) -> int:
        """In how many parts a pass over sequences of these lengths and so many segments is run."""
        count = sum(lengths)
        small = self._captured is not None and self._captured.takes(count, segments)
        # A light one on a GPU is soon over, and has no more than its room beside another.
        small = small or (self.decoder.device.type == "cuda" and self.is_light(count))
        return 1 if small else self._stretches.of(lengths)

    def is_light(self, tokens: int) -> bool:
        """Whether a pass needs so little memory that it may run while another one is
        interrupted."""
        return tokens * self._kept * _LIGHT <= self._limits.activation_bytes

    def run(
        self, tokens: Sequence[NDArray[np.int64]], segments: Sequence[Segment], training: bool,
        on_routes: Routed, replayed: Replayed | None = None,
    ) -> Generator[None, None, Pass]:  # fmt: skip
        """The forward pass over these sequences, packed. `training` allows a backward pass. Yields
        between its stretches, where the device may be used for other work."""
        lengths = [len(part) for part in tokens]
        count = sum(lengths)
        bucket = None if self._captured is None else self._captured.bucket(count, segments)
        if self._captured is not None and bucket is not None:
            return self._captured.run(bucket, tokens, segments)
        device, long = self.decoder.device, max(lengths) >= LONG
        with torch.set_grad_enabled(training):
            x, facts = self.decoder.entered(
                to_device(np.concatenate(tokens), device),
                to_device(np.concatenate([np.arange(length) for length in lengths]), device),
                self._attention(lengths),
                self._lora(segments, count),
                packed_recurrence(lengths, device, self._triton) if self._recurs else None,
                on_routes=on_routes,
                replayed=replayed,
                stream=self._stream(count),
            )
        eager = EagerPass(
            self.decoder, facts, training,
            recompute=training and self._heavy(count),
            keep_attention=long and self._for_long().kept and self._has_room_for_attention(count),
        )  # fmt: skip
        yield from eager.forward(x, self.stretches(lengths, len(segments)))
        return eager

    def _attention(self, lengths: Sequence[int]) -> Attend:
        config, device = self.decoder.config, self.decoder.device
        if not self.decoder.steady:
            whole = max(lengths) >= LONG and self._for_long().whole
            return PackedAttention(lengths, config.windows, device, whole=whole)
        from tinkex.engine.kernels.steady.attention import split_of
        from tinkex.engine.training.steady_attention import SteadyPackedAttention

        split = split_of(config.max_context)
        return SteadyPackedAttention(lengths, config.windows, config.attention.group, split, device)

    def _for_long(self) -> LongAttention:
        """What is there for long sequences. Trying it takes seconds of loading, so that an engine
        does it when it has nothing to do, and not while those wait whose engine was killed."""
        if self._long is None:
            self._long = self._tried()
        return self._long

    def _tried(self) -> LongAttention:
        if self.decoder.steady:
            return LongAttention(whole=False, kept=False)
        here, wide = self.decoder.device.type == "cuda", self.decoder.dtype == torch.float32
        if not here or wide or self.decoder.config.max_context < LONG:
            return LongAttention()
        return tried(self.decoder)

    def _captured_passes(self) -> CapturedPasses | None:
        """None without a GPU or Triton, or with blocks that cannot be captured."""
        if not (self._triton and self.decoder.config.capturable):
            return None
        from tinkex.engine.training.captured_pass import CapturedPasses

        return CapturedPasses(self.decoder, self._limits.activation_bytes // (4 * self._kept))

    def _likely_kernels(self) -> Iterator[None]:
        if not (self._triton and self.decoder.device.type == "cuda"):
            return iter(())
        from tinkex.engine.adapters.grouped import table_slots
        from tinkex.engine.adapters.likely_shapes import launches

        decoder = self.decoder
        slots = table_slots(decoder.config)
        dtypes = {"dtype": decoder.dtype, "stream": decoder.stream}
        return launches(slots, decoder.device, **dtypes, steady=decoder.steady)

    def _lora(self, segments: Sequence[Segment], rows: int) -> PackedLora:
        device = self.decoder.device
        if self.decoder.steady:
            from tinkex.engine.adapters.grouped import steady_lora, table_slots

            return steady_lora(segments, table_slots(self.decoder.config), rows, device)
        if not self._triton or (len(segments) < 2 and not self._mixes):
            return PackedLora(segments, device)
        from tinkex.engine.adapters.grouped import LoraTable, Shape, TableLora, table_slots

        table = LoraTable(table_slots(self.decoder.config), rows, len(segments), device)
        table.fill(segments)
        return TableLora(table, segments, Shape.of(segments), device)

    def _heavy(self, tokens: int) -> bool:
        """Whether this many tokens would keep more activations than the limit allows."""
        return tokens * self._kept > self._limits.activation_bytes

    def _stream(self, tokens: int) -> torch.dtype:
        """Of a long pass, which keeps every layer's input, the decoder's own dtype where inputs
        twice as large would take more than the limit."""
        inputs = tokens * len(self.decoder.config.layers) * self.decoder.config.hidden_size
        fits = 2 * inputs * self.decoder.stream.itemsize <= self._limits.activation_bytes
        return self.decoder.stream if fits else self.decoder.dtype

    def _has_room_for_attention(self, tokens: int) -> bool:
        """Whether what attention gives can be kept beside each layer's input."""
        config, itemsize = self.decoder.config, self.decoder.dtype.itemsize
        attends = sum(mixer.q_size for mixer in config.attends if mixer is not None)
        inputs = len(config.layers) * config.hidden_size * self._stream(tokens).itemsize
        return tokens * (inputs + attends * itemsize) <= self._limits.activation_bytes

    @property
    def _kept(self) -> int:
        """Bytes that a pass keeps per token for its backward pass: of every block what it counts,
        the stream before it included, which may be wider."""
        decoder, config = self.decoder, self.decoder.config
        wider = decoder.stream.itemsize - decoder.dtype.itemsize
        streams = 2 * len(config.layers) * config.hidden_size
        return config.kept * decoder.dtype.itemsize + streams * wider
