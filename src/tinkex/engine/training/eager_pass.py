"""A training pass operation by operation, in stretches of layers.

A long pass takes seconds, and others would wait for all of it. So it is cut between layers, each
stretch has a backward pass of its own, and the caller may do other work at every cut. Cuts change
no bit: what crosses them is kept and given back as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.passes import Pass as PassFacts
from tinkex.engine.model.sizes import sizes_of

_WORK = {"cuda": 1e13, "cpu": 2.5e8}
"""Parameters times tokens of a stretch: by the rates of whole passes about 30 ms of an H200 and 8
to 25 of two cores; backwards, where layers are computed again, up to three times that. Reckoned."""


class Stretches:
    """How passes over a model are cut: the same on every rank if several share it."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        whole = config if config.shard is None else config.shard.whole
        self._layers = len(whole.layers)
        self._parameters = sizes_of(whole).active
        self._attends = sum(mixer.q_size for mixer in whole.attends if mixer is not None)
        self._work = _WORK.get(device.type, _WORK["cpu"])

    def of(self, lengths: Sequence[int]) -> int:
        """The number of stretches of a pass over sequences of these lengths."""
        pairs = sum(length * length for length in lengths)
        work = self._parameters * sum(lengths) + self._attends * pairs
        return max(1, min(self._layers, round(work / self._work)))


class EagerPass:
    """`recompute` and `keep_attention` as in `Decoder.through`."""

    hidden: Tensor

    def __init__(
        self, decoder: Decoder, facts: PassFacts, training: bool, recompute: bool,
        keep_attention: bool,
    ) -> None:  # fmt: skip
        self._decoder, self._facts, self._training = decoder, facts, training
        self._recompute, self._keep_attention = recompute, keep_attention
        self._cuts: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor, stretches: int) -> Iterator[None]:
        """Compute from the stream before the first layer; yields between two stretches."""
        layers = len(self._decoder.config.layers)
        bounds = [layers * cut // stretches for cut in range(stretches + 1)]
        for first, stop in pairwise(bounds):
            if first:
                yield
                # The stretch before gets its gradient.
                x = x.detach().requires_grad_(x.requires_grad)
            with torch.set_grad_enabled(self._training):
                out = self._stretch(x, range(first, stop))
            if self._training:
                self._cuts.append((x, out))
            x = out
        self.hidden = x.detach()

    def backward(self, gradient: Tensor) -> Iterator[None]:
        while self._cuts:
            entered, left = self._cuts.pop()
            if not left.requires_grad:
                return
            torch.autograd.backward([left], [gradient])
            del left
            if entered.grad is None:
                return
            gradient, entered.grad = entered.grad, None
            yield

    def _stretch(self, x: Tensor, layers: range) -> Tensor:
        x = self._decoder.through(x, self._facts, layers, self._recompute, self._keep_attention)
        return self._decoder.left(x) if layers.stop == len(self._decoder.config.layers) else x
