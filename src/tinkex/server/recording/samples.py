"""Recent samples and training examples, a few a second, for people to read.

They wait in memory and are written a moment later, shortened and compressed on the writing thread,
so a sample costs the event loop one look at a counter. With recording switched off nothing is kept.
Stores token ids only; texts are made when somebody looks.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages import Datum, Sample, SampleResult, Tensor
from tinkex.server.clock import Clock
from tinkex.server.recording.events import Events
from tinkex.server.storage.database import Store
from tinkex.server.storage.database import kept_samples as table
from tinkex.server.storage.database.kept_samples import Source
from tinkex.server.storage.database.samplers import SamplerRow
from tinkex.server.storage.database.transactions import Transaction

KEPT_PER_SOURCE = 256
A_SECOND = 8
_MOST_WAITING = 1024
_MOST_SOURCES = 4096
_PROMPT_TOKENS = 1024
_OUTPUT_TOKENS = 2048

Numbers = NDArray[np.int32] | NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Kept:
    """One sequence as it is kept, before it is shortened."""

    source: Source  # run and tenant it is of
    at: float  # seconds since 1970
    kind: Literal["sample", "datum"]  # drawn, or trained on
    prompt: Numbers  # token ids before the output
    tokens: Numbers  # of the output, or of the targets
    logprobs: Numbers | None  # of those
    advantages: Numbers | None = None  # of a datum that has them
    sampler: str | None = None  # it was drawn by
    weights: str | None = None  # it was drawn with
    finish_reason: str | None = None  # why it ended
    of: int = 1  # sequences of the same request
    index: int = 0  # among those

    def encode(self) -> bytes:
        prompt, tokens = self.prompt[-_PROMPT_TOKENS:], self.tokens[:_OUTPUT_TOKENS]
        values = {
            "kind": self.kind,
            "sampler": self.sampler,
            "weights": self.weights,
            "prompt": {"tokens": prompt.tolist(), "left_out": len(self.prompt) - len(prompt)},
            "output": {
                "tokens": tokens.tolist(),
                "left_out": len(self.tokens) - len(tokens),
                "logprobs": _short(self.logprobs),
                "advantages": _short(self.advantages),
            },
            "finish_reason": self.finish_reason,
            "of": self.of,
            "index": self.index,
        }
        return zlib.compress(json.dumps(values, separators=(",", ":")).encode(), 1)


def decode(data: bytes) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(zlib.decompress(data))
    return values


class SampleRing:
    """What was sampled and trained on lately, by source."""

    def __init__(self, store: Store, events: Events, clock: Clock, *, recording: bool) -> None:
        self.recording = recording
        self._store = store
        self._events = events
        self._clock = clock
        self._waiting: list[Kept] = []
        self._taken: dict[Source, tuple[float, int]] = {}

    def sampled(self, sampler: SamplerRow, command: Sample, result: SampleResult) -> None:
        """A sample ended well."""
        source = Source(sampler.tenant, sampler.base_model, sampler.model_id)
        self.add(source, command, result, sampler.sampler_id, sampler.model_path)

    def add(
        self,
        source: Source,
        command: Sample,
        result: SampleResult,
        sampler: str | None = None,
        weights: str | None = None,
    ) -> None:
        """Keep some sequences of a result, if it is time to keep any of this source."""
        now = self._clock.now()
        for index in range(self._room(source, len(result.sequences))):
            sequence = result.sequences[index]
            self._waiting.append(
                Kept(
                    source,
                    now,
                    "sample",
                    command.prompt,
                    sequence.tokens,
                    sequence.logprobs,
                    sampler=sampler,
                    weights=weights,
                    finish_reason=sequence.stop_reason,
                    of=len(result.sequences),
                    index=index,
                )
            )

    def trained(self, source: Source, datum: Datum, outputs: Mapping[str, Tensor]) -> None:
        """A run was trained on this, among others."""
        if self._room(source, 1) and (kept := _example(source, self._clock.now(), datum, outputs)):
            self._waiting.append(kept)

    async def flush(self) -> None:
        """Write down what waits, and tell those who watch."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        counts: dict[Source, int] = {}
        for kept in waiting:
            counts[kept.source] = counts.get(kept.source, 0) + 1

        def work(db: Transaction) -> None:
            for kept in waiting:
                table.add(db, kept.source, kept.at, kept.encode())
            for source in counts:
                table.trim(db, source, KEPT_PER_SOURCE)

        await self._store.write(work)
        for source, count in counts.items():
            data = {"run": source.model_id, "model": source.base_model, "count": count}
            self._events.publish(source.tenant, "sample", data)

    async def forget_all(self) -> None:
        """Where nothing is to be kept, nothing stays."""
        await self._store.write(table.delete_all)

    def _room(self, source: Source, wanted: int) -> int:
        """How many of a source may be kept now: a few in each second."""
        if not self.recording or len(self._waiting) >= _MOST_WAITING:
            return 0
        second = math.floor(self._clock.monotonic())
        since, taken = self._taken.get(source, (second, 0))
        taken = taken if since == second else 0
        if source not in self._taken and len(self._taken) >= _MOST_SOURCES:
            self._taken.pop(next(iter(self._taken)))
        granted = min(wanted, A_SECOND - taken)
        self._taken[source] = (second, taken + granted)
        return granted


def _example(source: Source, at: float, datum: Datum, outputs: Mapping[str, Tensor]) -> Kept | None:
    """A datum as prompt and continuation: it begins where something counts."""
    targets, logprobs = datum.inputs.get("target_tokens"), outputs.get("logprobs")
    if not isinstance(targets, np.ndarray) or targets.ndim != 1 or not len(targets):
        return None
    advantages = datum.inputs.get("advantages")
    counted = next(
        (
            np.flatnonzero(given)
            for name in ("weights", "logprobs", "advantages")
            if isinstance(given := datum.inputs.get(name), np.ndarray)
        ),
        np.zeros(0, np.intp),
    )
    start = int(counted[0]) if len(counted) else 0
    return Kept(
        source,
        at,
        "datum",
        datum.tokens[: start + 1],
        targets[start:],
        logprobs[start:] if isinstance(logprobs, np.ndarray) else None,
        advantages[start:] if isinstance(advantages, np.ndarray) else None,
    )


def _short(values: Numbers | None) -> list[float | None] | None:
    if values is None:
        return None
    return [
        float(f"{value:.5g}") if math.isfinite(value) else None
        for value in values[:_OUTPUT_TOKENS].tolist()
    ]
