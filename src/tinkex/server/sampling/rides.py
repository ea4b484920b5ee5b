"""One sample on its way: which weights it is drawn from, its watchers, and how it ends.

Watchers get each token once, however often the sample had to be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tinkex.engine.messages import Progress, Sample, SampleResult, TopK, WeightsRef
from tinkex.server.engines.engine import CommandFailed, Engine
from tinkex.server.engines.loaded_weights import BASE, Find
from tinkex.server.engines.pool import Pool
from tinkex.server.storage.folders import Folders


class ServedWeights(NamedTuple):
    """What to sample from: an adapter's folder by name, or with none the base model. `digest`
    names its content, where that is known."""

    name: str = BASE
    folders: Folders | None = None
    digest: str = ""

    @property
    def is_there(self) -> bool:
        return self.folders is None or self.folders.has(self.name)

    @property
    def find(self) -> Find | None:
        """How an engine gets them; None for the base model, which it has."""
        return None if self.folders is None else self._find

    async def _find(self, by_links: bool) -> WeightsRef:
        assert self.folders is not None
        linked = await self.folders.linked(self.name) if by_links else None
        return linked or await self.folders.reference(self.name, self.digest)


@dataclass(slots=True, eq=False)
class Ride:
    """One sample in a lane."""

    op: str  # its name at the engine
    tenant: str  # the tenant whose lane it is in
    pool: Pool  # engines of its model
    weights: ServedWeights  # it samples with
    command: Sample  # what the engine is asked
    on_progress: Callable[[Progress], None] | None  # told of new tokens
    on_sent: Callable[[], None] | None  # told when an engine has it
    result: asyncio.Future[SampleResult]  # what the engine said, or `CommandFailed`
    entered: float  # when, on the monotonic clock
    engine: Engine | None = None  # where it was sent; None while it waits
    sent_at: float | None = None  # when, on the same clock
    deaths: int = 0  # the engines it was at
    _told: dict[int, int] = field(default_factory=dict)  # tokens passed on, by sequence
    # tokens received in this life of the engine, by sequence
    _come: dict[int, int] = field(default_factory=dict)

    @property
    def sequences(self) -> int:
        return self.command.num_samples

    def begin(self) -> None:
        """It is being sent: tokens will come from the first on."""
        self._come = {}

    def tell(self, progress: Progress) -> None:
        """Pass on the tokens that were not passed on before."""
        index, count = progress.index, len(progress.tokens)
        start = self._come.get(index, 0)
        self._come[index] = start + count
        known = max(0, self._told.get(index, 0) - start)
        if known < count and self.on_progress is not None and not self.result.done():
            self._told[index] = start + count
            self.on_progress(_without(progress, known) if known else progress)

    def let_go(self) -> None:
        """Release the engine's answer. Only for a sample that has ended."""
        self.result = asyncio.get_running_loop().create_future()
        self.result.cancel()

    def end(self, found: SampleResult | CommandFailed) -> None:
        """End with this outcome, unless it has ended."""
        if self.result.done():
            return
        if isinstance(found, SampleResult):
            self.result.set_result(found)
        else:
            self.result.set_exception(found)


def _without(progress: Progress, known: int) -> Progress:
    """The part after its first `known` tokens."""
    topk = progress.topk
    return replace(
        progress,
        tokens=progress.tokens[known:],
        logprobs=progress.logprobs[known:],
        topk=None if topk is None else TopK(topk.ids[known:], topk.logprobs[known:]),
    )
