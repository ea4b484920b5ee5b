"""One packed batch of training calls, run in units: a micro-batch, or a stretch of a long one.

Each call is checked before anything runs; calls that fail the check are left out. A call's gradient
is accumulated in a vector of its own and reaches its run only at the end, so a batch that breaks
has changed nothing. A call whose loss fails, or whose numbers overflow, fails alone. A call whose
loss takes long leaves the batch as `Deferred` and is run again later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.adapters.packed import PackedLora, Segment
from tinkex.engine.cpu.threads import threads, threads_for
from tinkex.engine.errors import EngineError, UserError
from tinkex.engine.limits import Limits
from tinkex.engine.losses.evaluation import BoundSlopes, Evaluation, NotYet
from tinkex.engine.losses.inputs import CheckedDatum
from tinkex.engine.messages import ForwardBackwardResult
from tinkex.engine.training.expert_loads import ExpertLoads
from tinkex.engine.training.logprobs import Cells, Head, Slopes
from tinkex.engine.training.packing import MicroBatch, Piece, pack
from tinkex.engine.training.passes import Passes
from tinkex.engine.training.replay import replay_of, replayed_share
from tinkex.engine.training.run import Run


@dataclass(slots=True, eq=False, weakref_slot=True)
class Call:
    """A checked command on its way through a batch."""

    run: Run  # the run whose weights it uses
    data: list[CheckedDatum]  # in the caller's order
    loss: Evaluation  # built in, or the caller's own
    forward_only: bool  # whether it wants no gradient
    # Its accumulated gradient; the run gets it when the batch has succeeded.
    staged: Tensor | None = None
    # Why this call failed.
    failure: EngineError | None = None
    # Answers of its loss that are still to come.
    awaited: list[Future[Any]] = field(default_factory=list)
    # Logprobs on the device, by datum.
    found: dict[int, Tensor] = field(default_factory=dict)
    # The same on the host, copied at the end.
    logprobs: list[NDArray[np.float32]] = field(default_factory=list)
    # Norm of the gradient.
    norm: float = 0.0

    @property
    def is_out(self) -> bool:
        """Whether it has failed or left the batch."""
        return self.failure is not None or bool(self.awaited)

    def afresh(self) -> Call:
        """The same call for another batch. Its loss keeps what it has computed."""
        return Call(self.run, self.data, self.loss, self.forward_only)


@dataclass(frozen=True, slots=True)
class Deferred:
    """A call that was not finished because its loss takes long. It has changed nothing."""

    call: Call

    @property
    def ready(self) -> bool:
        return all(answer.done() for answer in self.call.awaited)

    def wait(self) -> None:
        wait(self.call.awaited)

    def notify(self, wake: Callable[[], None]) -> None:
        """Call `wake` from any thread whenever an answer arrives, and so when it is ready."""
        for answer in self.call.awaited:
            answer.add_done_callback(lambda _: wake())


Outcome = ForwardBackwardResult | EngineError
Ending = Outcome | Deferred


@dataclass(frozen=True, slots=True)
class _Span:
    """The part of a micro-batch that belongs to one call: tokens and cells [start, stop)."""

    call: Call
    pieces: tuple[Piece, ...]
    rows: tuple[int, int]
    cells: tuple[int, int]

    @property
    def data(self) -> list[CheckedDatum]:
        return [self.call.data[piece.datum] for piece in self.pieces]


@dataclass(slots=True)
class _OpenMicroBatch:
    """A micro-batch that has begun."""

    work: Iterator[None]
    tokens: int
    units: int  # still to run


_ENDED = object()


class Batch(Iterator[int]):
    """Each `next` runs one unit of work and returns the tokens of the micro-batch it belongs to.

    When it is exhausted, `outcomes` has an entry per call, in order, and the runs have their
    gradients. An exception becomes the outcome of every call; none is raised.
    """

    def __init__(self, passes: Passes, limits: Limits, calls: Sequence[Call | EngineError]) -> None:
        self._passes, self._decoder, self._limits = passes, passes.decoder, limits
        self._calls = calls
        self.outcomes: list[Ending] = []
        self._waiting = self._plan()
        self._open: _OpenMicroBatch | None = None
        self._staged = False
        self._done = False
        mixtures = self._decoder.config.mixtures.values()
        self._loads = ExpertLoads(next((mixture.routed for mixture in mixtures), 0))

    def __next__(self) -> int:
        if self._open is not None or self._waiting:
            try:
                return self._advance()
            except Exception as error:
                self._break(error)
                raise StopIteration from None
        if not self._done:
            self._done = True
            with threads(threads_for(self._decoder.parameters, 0)):
                self._end()
        raise StopIteration

    @property
    def remaining(self) -> int:
        """Units still to run. At 0 one more `next` computes the outcomes."""
        begun = 0 if self._open is None else self._open.units
        return begun + sum(map(self._units, self._waiting))

    @property
    def is_open(self) -> bool:
        """Whether a micro-batch is under way, and holds memory."""
        return self._open is not None

    @property
    def is_light(self) -> bool:
        """Whether its next micro-batch needs little memory."""
        return bool(self._waiting) and self._passes.is_light(_tokens(self._waiting[0]))

    def _advance(self) -> int:
        if self._open is None:
            micro = self._waiting.pop(0)
            self._open = _OpenMicroBatch(self._run(micro), _tokens(micro), self._units(micro))
        opened = self._open
        with threads(threads_for(self._decoder.parameters, opened.tokens)):
            ended = next(opened.work, _ENDED) is _ENDED
        opened.units -= 1
        self._open = None if ended else opened
        return opened.tokens

    def _units(self, micro: Sequence[Piece]) -> int:
        """Units of a micro-batch: stretches forwards, the losses, stretches backwards."""
        calls = {piece.call: self._calls[piece.call] for piece in micro}
        cuts = self._passes.stretches([piece.length for piece in micro], len(calls))
        training = any(isinstance(call, Call) and not call.forward_only for call in calls.values())
        return 1 if cuts == 1 else 1 + cuts * (2 if training else 1)

    def _plan(self) -> list[MicroBatch]:
        kinds: dict[bool, list[Piece]] = {False: [], True: []}
        for index, call in enumerate(self._calls):
            if isinstance(call, Call):
                kinds[call.forward_only].extend(
                    Piece(index, i, len(datum.tokens)) for i, datum in enumerate(call.data)
                )
        budget = self._passes.micro_batch_tokens
        return pack(kinds[False], budget) + pack(kinds[True], budget)

    def _run(self, micro: MicroBatch) -> Iterator[None]:
        spans = self._spans(micro)
        training = not spans[0].call.forward_only
        data = [datum for span in spans for datum in span.data]
        segments = self._segments(spans, training)
        tokens = [datum.tokens for datum in data]
        replayed = replay_of(data, self._decoder.config, self._decoder.device)
        done = yield from self._passes.run(tokens, segments, training, self._loads.note, replayed)
        if self._units(micro) > 1:
            yield
        rows = max(1, self._limits.logit_elements // self._decoder.config.vocab_size)
        head = Head(self._decoder, PackedLora(segments, done.hidden.device), Cells.of(data), rows)
        gradient = torch.zeros_like(done.hidden) if training else None
        logprobs = self._losses(head, done.hidden, _sharing(spans, rows), gradient)
        counts = not all(span.call.is_out for span in spans)
        if counts and gradient is not None:
            if self._units(micro) > 1:
                yield
            yield from done.backward(gradient)
        self._collect(spans, logprobs)
        self._loads.settle((id(span.call), span.rows) for span in spans)

    def _losses(
        self, head: Head, hidden: Tensor, groups: Sequence[Sequence[_Span]], gradient: Tensor | None
    ) -> Tensor:
        """Logprobs of all cells; the calls of a group share blocks of logits."""
        found = []
        for members in groups:
            whole = members[0].call.loss.whole_sequence
            first, last = members[0].rows[0], members[-1].rows[1]
            slopes = _joint_slopes(members, hidden.device) if gradient is not None else None
            if whole and slopes is not None:
                low, high = members[0].cells[0], members[-1].cells[1]
                logprobs = head.run(hidden, first, last, None, None)
                slopes = _known_slopes(low, slopes(low, high, logprobs))
            found.append(head.run(hidden, first, last, slopes, gradient))
        return torch.cat(found)

    def _spans(self, micro: MicroBatch) -> list[_Span]:
        spans, row, cell = [], 0, 0
        for index, group in groupby(micro, key=lambda piece: piece.call):
            call, pieces = self._calls[index], tuple(group)
            assert isinstance(call, Call)
            rows = row + sum(piece.length for piece in pieces)
            cells = cell + sum(len(call.data[piece.datum].targets) for piece in pieces)
            spans.append(_Span(call, pieces, (row, rows), (cell, cells)))
            row, cell = rows, cells
        return spans

    def _segments(self, spans: Sequence[_Span], training: bool) -> list[Segment]:
        if training and not self._staged:
            self._stage()
        return [self._segment(span) for span in spans]

    def _segment(self, span: _Span) -> Segment:
        call, adapter = span.call, span.call.run.adapter
        grads = adapter.layout.factors(call.staged) if call.staged is not None else None
        return Segment(*span.rows, adapter.layout.scaling, adapter.factors, grads)

    def _stage(self) -> None:
        """Give each training call a zero vector for its gradient."""
        self._staged = True
        for call in self._calls:
            if isinstance(call, Call) and not call.forward_only:
                call.staged = torch.zeros_like(call.run.adapter.master)

    def _collect(self, spans: Sequence[_Span], logprobs: Tensor) -> None:
        for span in spans:
            sizes = [len(datum.targets) for datum in span.data]
            parts = logprobs[span.cells[0] : span.cells[1]].split_with_sizes(sizes)
            for piece, part in zip(span.pieces, parts, strict=True):
                span.call.found[piece.datum] = part

    def _end(self) -> None:
        try:
            self._fetch()
        except Exception as error:
            self._break(error)
        else:
            self.outcomes = [self._finish(call) for call in self._calls]

    def _fetch(self) -> None:
        """Copy all results to the host at once: on a GPU each copy waits for all work before it."""
        calls = [c for c in self._calls if isinstance(c, Call) and not c.is_out]
        parts = [call.found[index] for call in calls for index in range(len(call.data))]
        norms = [norm[None] for norm in self._norms(calls)]
        arrays = iter(_to_host([*parts, *norms]) if parts else [])
        for call in calls:
            call.logprobs = [next(arrays) for _ in call.data]
        for call in calls:
            call.norm = float(next(arrays)[0]) if call.staged is not None else 0.0

    def _norms(self, calls: Sequence[Call]) -> Iterator[Tensor]:
        for call in calls:
            if call.staged is not None:
                shares = call.run.adapter.layout.shares
                shares.complete(call.staged)
                yield shares.norm(call.staged)

    def _finish(self, call: Call | EngineError) -> Ending:
        if isinstance(call, EngineError):
            return call
        if call.is_out:
            return call.failure or Deferred(call)
        try:
            metrics = call.loss.metrics(call.data, call.logprobs) | self._loads.metrics(id(call))
            metrics |= replayed_share(call.data)
            _refuse_overflow(call, metrics)
            if call.staged is not None:
                call.run.gather(call.staged, call.norm)
        except Exception as error:
            _take_out(call, error)
            return call.failure or Deferred(call)
        outputs = tuple(
            {"logprobs": logprobs.reshape(datum.shape)}
            for logprobs, datum in zip(call.logprobs, call.data, strict=True)
        )
        return ForwardBackwardResult(outputs, metrics)

    def _break(self, error: Exception) -> None:
        self._waiting, self._open, self._done = [], None, True
        failure = _failure(error)
        self.outcomes = [c if isinstance(c, EngineError) else failure for c in self._calls]


def _tokens(micro: Sequence[Piece]) -> int:
    return sum(piece.length for piece in micro)


def _sharing(spans: Sequence[_Span], block_rows: int) -> list[list[_Span]]:
    """Groups of neighbouring calls that share one block of logits. A larger call is alone, so that
    its blocks begin where it begins and its bits do not depend on its neighbours."""
    groups: list[list[_Span]] = []
    for span in spans:
        if groups:
            first, last = groups[-1][0], span
            alike = first.call.loss.whole_sequence == span.call.loss.whole_sequence
            if alike and last.rows[1] - first.rows[0] <= block_rows:
                groups[-1].append(span)
                continue
        groups.append([span])
    return groups


def _failure(error: Exception) -> EngineError:
    failure = EngineError(f"the training pass failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _to_host(parts: Sequence[Tensor]) -> list[NDArray[np.float32]]:
    joined = torch.cat(list(parts)).cpu().numpy()
    return np.split(joined, np.cumsum([len(part) for part in parts])[:-1])


def _refuse_overflow(call: Call, metrics: dict[str, float]) -> None:
    if not np.isfinite([metrics["loss:sum"], call.norm]).all():
        raise UserError(
            "the loss or its gradient is not finite with these weights and inputs; nothing was "
            "added. Check logprobs, advantages and weights for extreme values, or the learning rate"
        )


def _joint_slopes(spans: Sequence[_Span], device: torch.device) -> Slopes:
    """Collects from each call the slopes of its own cells."""
    bound = [(span, span.call.loss.bind(span.data, device)) for span in spans]

    def slopes(first: int, last: int, logprobs: Tensor) -> Tensor:
        parts = []
        for span, own in bound:
            start, stop = span.cells
            low, high = max(start, first), min(stop, last)
            if low < high:
                mine = logprobs[low - first : high - first]
                parts.append(_slopes_or_zero(span.call, own, low - start, high - start, mine))
        return torch.cat(parts)

    return slopes


def _slopes_or_zero(
    call: Call, bound: BoundSlopes, first: int, last: int, logprobs: Tensor
) -> Tensor:
    """A loss that fails, whatever it raises, takes its own call out and leaves the others alone."""
    if call.failure is None:
        try:
            return bound(first, last, logprobs)
        except Exception as error:
            _take_out(call, error)
    return torch.zeros_like(logprobs)


def _take_out(call: Call, error: Exception) -> None:
    if isinstance(error, NotYet):
        call.awaited.append(error.answer)
    else:
        call.failure = error if isinstance(error, EngineError) else _failure(error)


def _known_slopes(start: int, values: Tensor) -> Slopes:
    return lambda first, last, logprobs: values[first - start : last - start]
