"""Progress reports: the log of what a server does, for people, at a bounded rate.

New runs, steps now and then with loss and speed, saves, refusals with their reason, samples by the
half-minute. Lines about one run's steps come at most every few seconds, and so do repeats of the
same refusal, with a count of those left out. So a busy server logs no more than a quiet one. No
key, prompt or token appears, and nothing here changes what happens.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tinkex.server.clock import Clock
from tinkex.server.operations.base import Conclusion, Prepared
from tinkex.server.operations.log import CREATION, Entry
from tinkex.server.operations.run import Run
from tinkex.server.protocol.outcomes import told

logger = logging.getLogger(__name__)

STEPS_EVERY_S = 10.0
REFUSALS_EVERY_S = 10.0
SAMPLES_EVERY_S = 30.0
_REMEMBERED = 1024
_MESSAGE_LIMIT = 300


@dataclass(slots=True)
class _Since:
    """What a run has done since its last line."""

    at: float  # of the last line, by the server's clock
    steps: int = 0  # optimizer steps
    samplers: int = 0  # that were made
    tokens: int = 0  # trained on
    loss_sum: float = 0.0  # over tokens
    loss_tokens: float = 0.0  # that it is over

    def passed(self, tokens: int, metrics: Mapping[str, float]) -> None:
        """Count a forward-backward pass; several may make up a step."""
        self.tokens += tokens
        self.loss_sum += metrics.get("loss:sum", math.nan)
        self.loss_tokens += metrics.get("tokens:sum", 0.0)

    def take_loss(self) -> float | None:
        """The loss of the step that ends now: per counted token if the loss says how many there
        are."""
        total, tokens = self.loss_sum, self.loss_tokens
        self.loss_sum = self.loss_tokens = 0.0
        mean = total / tokens if tokens else total
        return mean if math.isfinite(mean) else None


class Narrator:
    """Is told of every end of an operation and every refusal; `sampled` is the total of tokens so
    far."""

    def __init__(self, clock: Clock, sampled: Callable[[], int]) -> None:
        self._clock = clock
        self._sampled = sampled
        self._runs: dict[str, _Since] = {}
        self._refusals = Throttle(clock, REFUSALS_EVERY_S)

    def ended(
        self, run: Run, entry: Entry, prepared: Prepared | None, conclusion: Conclusion
    ) -> None:
        """An operation ended, well or not, and its end is on disk."""
        since = self._since(run)
        if conclusion.outcome.failed:
            self._failed(run, entry, conclusion)
        elif entry.seq_id == CREATION:
            self._created(run)
        elif entry.kind.changes == "gradient":
            since.passed(0 if prepared is None else prepared.tokens, conclusion.metrics)
        elif entry.kind.is_step:
            since.steps += 1
            self._stepped(run, since, conclusion.metrics)
        elif conclusion.path is not None:
            _say("saved", f"run {short(run.model_id)}: saved {conclusion.path}", run.model_id)
        elif conclusion.sampler is not None:
            since.samplers += 1

    def refused(self, route: str, status: int, detail: str) -> None:
        """A request was refused. `route` is a path of ours, never the client's text."""
        left_out = self._refusals.pass_on((route, status))
        if left_out is not None:
            more = f" (and {left_out} like it)" if left_out else ""
            text = f"refused {status} {route}: {one_line(detail)}{more}"
            _say("refused", text, route=route, status=status)

    async def live(self) -> None:
        """Report now and then how much was sampled, if anything was."""
        before = self._sampled()
        while True:
            await asyncio.sleep(SAMPLES_EVERY_S)
            now = self._sampled()
            if now > before:
                speed = (now - before) / SAMPLES_EVERY_S
                text = f"sampled {now - before:,} tokens, {speed:,.0f} a second"
                _say("sampled", text, tokens=now - before, tokens_per_s=round(speed, 1))
            before = now

    def _since(self, run: Run) -> _Since:
        if run.model_id not in self._runs and len(self._runs) >= _REMEMBERED:
            self._runs.pop(next(iter(self._runs)))
        return self._runs.setdefault(run.model_id, _Since(-math.inf))

    def _created(self, run: Run) -> None:
        row = run.row
        text = f"run {run.model_id} created by {row.tenant}: {row.base_model}, rank {row.rank}"
        _say("created", text, run.model_id, base_model=row.base_model, rank=row.rank)

    def _failed(self, run: Run, entry: Entry, conclusion: Conclusion) -> None:
        left_out = self._refusals.pass_on((run.model_id, entry.kind.name))
        if left_out is not None:
            more = f" (and {left_out} like it)" if left_out else ""
            why = one_line(told(conclusion.outcome))
            text = f"run {short(run.model_id)}: {entry.kind.name} failed: {why}{more}"
            _say("failed", text, run.model_id, kind=entry.kind.name)

    def _stepped(self, run: Run, since: _Since, metrics: Mapping[str, float]) -> None:
        now, loss = self._clock.monotonic(), since.take_loss()
        seconds = now - since.at
        if seconds < STEPS_EVERY_S:
            return
        step, speed = metrics.get("optim/step"), since.tokens / seconds
        parts = [f"step {step:.0f}" if step is not None else f"{since.steps} steps"]
        if loss is not None:
            parts.append(f"loss {loss:.4f}")
        if math.isfinite(seconds):
            parts.append(f"{speed:,.0f} tokens/s")
        if since.samplers:
            parts.append(f"{since.samplers} samplers made")
        facts: dict[str, Any] = {"steps": since.steps, "tokens": since.tokens}
        facts |= {} if step is None else {"step": int(step)}
        facts |= {} if loss is None else {"loss": loss}
        facts |= {"tokens_per_s": round(speed, 1)} if math.isfinite(seconds) else {}
        _say("stepped", f"run {short(run.model_id)}: {', '.join(parts)}", run.model_id, **facts)
        self._runs[run.model_id] = _Since(now)


class Throttle:
    """Lets one of each kind through every few seconds and counts the others."""

    def __init__(self, clock: Clock, every_s: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._last: dict[object, tuple[float, int]] = {}

    def pass_on(self, kind: object) -> int | None:
        """None to stay silent; otherwise how many of this kind were left out before."""
        now = self._clock.monotonic()
        at, left_out = self._last.get(kind, (-math.inf, 0))
        if now - at < self._every_s:
            self._last[kind] = (at, left_out + 1)
            return None
        if kind not in self._last and len(self._last) >= _REMEMBERED:
            self._last.pop(next(iter(self._last)))
        self._last[kind] = (now, 0)
        return left_out


def short(model_id: str) -> str:
    """A run's id, shortened for people."""
    session, _, rest = model_id.partition(":")
    return f"{session[:8]}…:{rest}" if len(session) > 12 else model_id


def one_line(text: str) -> str:
    """Foreign text made safe for a line of the log: no control characters, not too long."""
    shown = "".join(char if char.isprintable() else " " for char in text[: _MESSAGE_LIMIT + 1])
    return shown if len(shown) <= _MESSAGE_LIMIT else f"{shown[:_MESSAGE_LIMIT]}…"


def _say(event: str, text: str, run: str | None = None, **facts: Any) -> None:
    named = {} if run is None else {"run": run}
    logger.info("%s", text, extra={"facts": {"event": event, **named, **facts}})
