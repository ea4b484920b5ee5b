"""A loss bound to one call: slopes while the pass runs, metrics when it is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.losses.definition import Loss
from tinkex.engine.losses.inputs import CheckedDatum, Wanted
from tinkex.engine.to_device import to_device

Logprobs = NDArray[np.float32]


class NotYet(Exception):
    """The result is being computed elsewhere; ask again when `answer` is there."""

    def __init__(self, answer: Future[Any]) -> None:
        super().__init__("not computed yet")
        self.answer = answer


class Evaluation(Protocol):
    """`whole_sequence` losses need all logprobs of a datum before any slope is known."""

    wanted: Wanted
    whole_sequence: bool

    def begin(self, data: Sequence[CheckedDatum]) -> None:
        """Note all of the call's datums, once, before anything else. May raise `UserError`."""
        ...

    def bind(self, data: Sequence[CheckedDatum], device: torch.device) -> BoundSlopes:
        """The slopes of these datums' cells, concatenated."""
        ...

    def metrics(
        self, data: Sequence[CheckedDatum], logprobs: Sequence[Logprobs]
    ) -> dict[str, float]:
        """The call's metrics, or `NotYet`; logprobs per datum, flat."""
        ...


class BoundSlopes(Protocol):
    def __call__(self, first: int, last: int, logprobs: Tensor) -> Tensor:
        """d loss / d logprob of cells [first, last); all cells at once if whole-sequence. `NotYet`
        if that takes longer than other runs can wait."""
        ...


class BuiltinEvaluation:
    """One of the protocol's own losses with its settings."""

    def __init__(self, loss: Loss, config: Mapping[str, float]) -> None:
        self._loss, self._config = loss, config
        self.whole_sequence = loss.whole_sequence
        self.wanted = Wanted(loss.inputs, loss.optional, loss.live_input, {})

    def begin(self, data: Sequence[CheckedDatum]) -> None:
        """Nothing to note: each cell, or each datum, is independent."""

    def bind(self, data: Sequence[CheckedDatum], device: torch.device) -> BoundSlopes:
        inputs = {k: to_device(t, device) for k, t in _joined(data, torch.float32).items()}
        sizes = [len(datum.targets) for datum in data]

        def local(first: int, last: int, logprobs: Tensor) -> Tensor:
            part = {name: tensor[first:last] for name, tensor in inputs.items()}
            return self._loss.terms(logprobs, part, self._config).slope

        def by_datum(first: int, last: int, logprobs: Tensor) -> Tensor:
            parts = {name: tensor.split_with_sizes(sizes) for name, tensor in inputs.items()}
            return torch.cat([
                self._loss.terms(
                    own, {name: part[i] for name, part in parts.items()}, self._config
                ).slope
                for i, own in enumerate(logprobs.split_with_sizes(sizes))
            ])  # fmt: skip

        return by_datum if self.whole_sequence else local

    def metrics(
        self, data: Sequence[CheckedDatum], logprobs: Sequence[Logprobs]
    ) -> dict[str, float]:
        groups = [[i] for i in range(len(data))] if self.whole_sequence else [range(len(data))]
        loss = 0.0
        for group in groups:
            own = torch.from_numpy(np.concatenate([logprobs[i] for i in group])).double()
            inputs = _joined([data[i] for i in group], torch.float64)
            loss += float(self._loss.terms(own, inputs, self._config).loss.sum())
        found = {"loss:sum": loss, "tokens:sum": float(sum(int(d.live.sum()) for d in data))}
        if self._loss.stats is not None:
            own = torch.from_numpy(np.concatenate(list(logprobs))).double()
            found.update(self._loss.stats(own, _joined(data, torch.float64), self._config))
        return found


def _joined(data: Sequence[CheckedDatum], dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(np.concatenate([datum.inputs[name] for datum in data])).to(dtype)
        for name in data[0].inputs
    }
