"""Samples for these routes: admitted, sent through the lanes, metered, stopped if no client waits.

A `Draw` is all prompts of one request. New tokens are collected while a client is slow to take
them, so a stream holds at most what its sequences hold. Knows tokens only: no text, no HTTP.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tinkex.engine.messages import Progress, Sample, SampleResult, TopK
from tinkex.server.endpoints.awaited import Signal
from tinkex.server.endpoints.errors import Unfit, from_engine
from tinkex.server.endpoints.foreseen import is_sure
from tinkex.server.endpoints.targets import Target
from tinkex.server.engines.engine import CommandFailed
from tinkex.server.recording.samples import SampleRing
from tinkex.server.refusals import Busy
from tinkex.server.sampling.admission import Admission
from tinkex.server.sampling.lanes import Lanes
from tinkex.server.sampling.rides import Ride
from tinkex.server.storage.database.kept_samples import Source as SampleSource
from tinkex.server.storage.database.usage import Source
from tinkex.server.tenancy.usage import Meter
from tinkex.types.sampling import EMPTY_CELL_LOGPROB

Best = list[tuple[int, float]]
"""The likeliest tokens at one place, and their logprobs."""

MOST_LOGPROBS = 4 * 2**20
"""Told of all tokens of one request, half a gigabyte while they are written."""
_SEQUENCE = 16
"""A sequence takes as long to tell as so many tokens."""

_PART = 4096

_TOLD_BYTES = 128
"""What a token, or a logprob beside it, takes in memory until it is told."""
_PATIENCE_BYTES = 4 * 2**20
"""Bytes of new tokens that may always wait for a client."""
_TOO_SLOW = "this stream was taken too slowly: what waited filled this key's part of the memory"

HEARTBEAT_S = 10.0
"""How long a stream may be silent."""


@dataclass(slots=True)
class News:
    """New tokens of sequence `index` of prompt `prompt`."""

    prompt: int
    index: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    best: list[Best] = field(default_factory=list)

    def parts(self) -> Iterator[News]:
        """The same, in parts with so many logprobs that each is written in milliseconds."""
        if not self.best:
            yield self
            return
        width = max(map(len, self.best))
        step = max(1, _PART // width) if width else len(self.tokens)
        for start in range(0, len(self.tokens), step):
            here = slice(start, start + step)
            part = (self.tokens[here], self.logprobs[here], self.best[here])
            yield News(self.prompt, self.index, *part)

    def extend(self, progress: Progress) -> None:
        self.tokens += progress.tokens.tolist()
        self.logprobs += progress.logprobs.tolist()
        self.best += likeliest(progress.topk)


class Draws:
    """Makes draws."""

    def __init__(
        self, lanes: Lanes, admission: Admission, meter: Meter, samples: SampleRing
    ) -> None:
        self._lanes = lanes
        self._admission = admission
        self._meter = meter
        self._samples = samples

    def begin(
        self,
        tenant: str,
        target: Target,
        commands: Sequence[Sample],
        *,
        stream: bool = False,
        grammar: str = "grammar",
    ) -> Draw:
        """Queue the samples of one request; raises `Busy` if there is no room for them. `grammar`
        is the field that theirs came from."""
        self._admission.check(tenant, sum(command.prompt.nbytes for command in commands))
        parts = self._lanes, self._admission, self._meter, self._samples
        return Draw(*parts, tenant, target, commands, stream, grammar)


class Draw:
    """The samples of one request. Its holder must `close` it, whatever happened."""

    def __init__(
        self,
        lanes: Lanes,
        admission: Admission,
        meter: Meter,
        samples: SampleRing,
        tenant: str,
        target: Target,
        commands: Sequence[Sample],
        stream: bool,
        grammar: str,
    ) -> None:
        self.target = target
        self._grammar = grammar
        self._lanes = lanes
        self._admission = admission
        self._meter = meter
        self._samples = samples
        self._tenant = tenant
        self._news: dict[tuple[int, int], News] = {}
        self._told: Counter[int] = Counter()
        self._unread = 0
        self._given_up = False
        self._changed = Signal()
        if target.context is not None:
            commands = [replace(command, context=target.context) for command in commands]
        sure = stream and lanes.has_loaded(target.weights)
        sure = sure and all(is_sure(command, target.pool.facts) for command in commands)
        self._rides = [
            self._enter(number, command, stream, sure) for number, command in enumerate(commands)
        ]

    def _enter(self, number: int, command: Sample, stream: bool, sure: bool) -> Ride:
        target = self.target
        watch = (lambda progress: self._note(number, progress)) if stream else None
        on_sent = self._changed.set if sure else None
        where = self._tenant, target.pool, target.weights
        ride = self._lanes.enter(*where, command, watch, on_sent)
        size = command.prompt.nbytes
        self._admission.begin(self._tenant, size)
        ride.result.add_done_callback(lambda _: self._ended(ride, size))
        return ride

    async def news(self) -> AsyncIterator[News | None]:
        """New tokens as they arrive, None when there were none for a while, until all samples have
        ended; raises why one failed."""
        while True:
            if self._given_up:
                raise Busy(_TOO_SLOW, 1.0)
            news, self._news = self._news, {}
            with self._telling():
                parts = [part for each in news.values() for part in each.parts()]
                for number, part in enumerate(parts):
                    if number:  # what was gathered for a slow client is much to tell
                        await asyncio.sleep(0)
                    yield part
            if not news and all(ride.result.done() for ride in self._rides):
                break
            if not self._news and not await self._changed.wait(HEARTBEAT_S):
                yield None
        await self.results()

    async def results(self) -> list[SampleResult]:
        """The result of each prompt, in order."""
        try:
            return [await asyncio.shield(ride.result) for ride in self._rides]
        except CommandFailed as failed:
            raise from_engine(failed, self._grammar) from None

    async def begun(self, seconds: float) -> None:
        """Wait until there is news or an end, at most so long; raises if that is a failure. Of what
        the engine is sure to take, until it has it: the rest is done while it computes."""
        await self._changed.wait(seconds)
        ended = [ride.result for ride in self._rides if ride.result.done()]
        if any(result.exception() for result in ended):
            await self.results()

    def close(self) -> None:
        """Stop what is still under way; its rows are free within a step."""
        self._changed.close()
        self._stop()
        with self._telling():
            self._news = {}

    def _stop(self) -> None:
        for number, ride in enumerate(self._rides):
            if not ride.result.done():
                self._lanes.cancel(ride)
                self._count(len(ride.command.prompt), 0, self._told[number])

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What was gathered so far takes no memory any more when this ends."""
        unread, self._unread = self._unread, 0
        try:
            yield
        finally:
            self._admission.forget(self._tenant, unread)

    def _gather(self, size: int) -> None:
        """Count bytes that wait for the client. A client that is slow to take much, when its tenant
        has filled its share of the memory, is given up."""
        self._unread += size
        self._admission.gather(self._tenant, size)
        if self._unread > _PATIENCE_BYTES and self._admission.is_full(self._tenant):
            self._given_up = True
            self._stop()
            self._changed.set()

    def _note(self, number: int, progress: Progress) -> None:
        key = number, progress.index
        if (news := self._news.get(key)) is None:
            news = self._news[key] = News(number, progress.index)
        news.extend(progress)
        self._told[number] += len(progress.tokens)
        told = len(progress.tokens) + (0 if progress.topk is None else progress.topk.ids.size)
        self._gather(_TOLD_BYTES * told)
        self._changed.set()

    def _ended(self, ride: Ride, size: int) -> None:
        self._admission.end(self._tenant, size, 0)
        self._changed.set()
        if ride.result.exception() is None:
            result = ride.result.result()
            drawn = sum(len(sequence.tokens) for sequence in result.sequences)
            self._count(len(ride.command.prompt), result.cached_tokens, drawn)
            made_by = self.target.made_by
            source = SampleSource(self._tenant, made_by.base_model, self.target.run)
            self._samples.add(source, ride.command, result, weights=made_by.path)

    def _count(self, prompt: int, cached: int, drawn: int) -> None:
        source = Source(self._tenant, "", "", self.target.made_by.base_model)
        self._meter.add(source, "sampling_prefill", prompt - cached)
        self._meter.add(source, "sampling_prefill", cached, cached=True)
        self._meter.add(source, "sampling_sample", drawn)


def cells(results: Sequence[SampleResult]) -> int:
    """How much there is to tell: tokens, logprobs, and what every sequence costs."""
    told = sum(map(len, (it for each in results if (it := each.prompt_logprobs) is not None)))
    for result in results:
        told += sum(_SEQUENCE + len(each.tokens) for each in result.sequences)
        tables = (result.topk_prompt_logprobs, *(each.topk for each in result.sequences))
        told += sum(table.ids.size for table in tables if table is not None)
    return told


def check_logprobs(field: str, asked: int) -> None:
    """Raises `Unfit` where a request asks for more of them than one may."""
    if asked > MOST_LOGPROBS:
        raise Unfit(
            f"{field}: {asked} logprobs could be told, of all tokens of this request; the limit is "
            f"{MOST_LOGPROBS}: ask for fewer of each token, for fewer tokens or samples, or in "
            "several requests",
            field,
        )


def likeliest(topk: TopK | None) -> list[Best]:
    """A row for each place; unused cells left out."""
    if topk is None:
        return []
    rows = zip(topk.ids.tolist(), topk.logprobs.tolist(), strict=True)
    return [
        [cell for cell in zip(ids, logprobs, strict=True) if cell[1] != EMPTY_CELL_LOGPROB]
        for ids, logprobs in rows
    ]
