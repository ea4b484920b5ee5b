"""Serves sample commands: every `step` computes the scheduled tokens and hands out what is new.

Owns the cache, the queue and the weights that can be sampled. Knows nothing of training, of
threads or of how events travel.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.cpu.threads import logsumexp, threads, threads_for
from tinkex.engine.errors import UserError
from tinkex.engine.messages import Done, Event, Failed, Progress, Sample, SampleResult
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.sampling.adapters import Version, VersionStore
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, KeyValueCache
from tinkex.engine.sampling.cache.pages import PageKeys, PagePool
from tinkex.engine.sampling.cache.recurrent_states import SequenceStates
from tinkex.engine.sampling.cache.state_pages import StatefulPagePool
from tinkex.engine.sampling.checks import check_sample
from tinkex.engine.sampling.controls import steered
from tinkex.engine.sampling.draw import Drawer
from tinkex.engine.sampling.forward import Forward
from tinkex.engine.sampling.grammar.compiling import Grammars, Promised
from tinkex.engine.sampling.grammar.constraint import Constraint
from tinkex.engine.sampling.prompt_logprobs import PromptScores
from tinkex.engine.sampling.request import Branch, Request, Turn, confirmed
from tinkex.engine.sampling.scheduling.scheduler import Chunk, Scheduler
from tinkex.engine.sampling.stopping import Stopping

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tinkex.engine.sampling.decode_graph import DecodeGraphs, DecodeStep

logger = logging.getLogger(__name__)

FailKind: TypeAlias = Literal["user", "server", "cancelled"]


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """`step_tokens` bounds the tokens of one step, `rows` the branches that decode at once and
    `logit_elements` the largest block of logits. `adapter_bytes` is the budget for served
    adapters that are not in use, `snapshots` the number of kept states of recurrent layers."""

    pages: int
    max_context: int
    rows: int = 64
    step_tokens: int = 256
    logit_elements: int = 1 << 24
    adapter_bytes: int = 1 << 30
    snapshots: int = 32


@dataclass(frozen=True, slots=True)
class Ending:
    """What the model's folder says about text: when it ends, and how tokens spell it."""

    eos: tuple[int, ...]
    tokenizer: Tokenizer | None


class Sampler:
    def __init__(
        self,
        decoder: Decoder,
        ending: Ending,
        limits: SamplerLimits,
        read_adapter: Callable[[str], AdapterWeights],
    ) -> None:
        config, device = decoder.config, decoder.device
        self._decoder, self._ending, self._limits = decoder, ending, limits
        self._states = self._sequence_states()
        self.pool = (
            PagePool(limits.pages, PAGE_SIZE)
            if self._states is None
            else StatefulPagePool(limits.pages, PAGE_SIZE, self._states)
        )
        self._cache = KeyValueCache(config, limits.pages, device, decoder.dtype)
        places = None if self._states is None else limits.rows
        self.scheduler = Scheduler(self.pool, limits.rows, limits.step_tokens, places)
        self.versions = VersionStore(
            config, device, decoder.dtype, limits.adapter_bytes, read_adapter
        )
        self._forward = Forward(decoder, self._cache, self._states)
        self._drawer = Drawer(config.vocab_size, device)
        self.grammars = Grammars(ending.tokenizer, config.vocab_size, ending.eos)
        self._compiling: dict[str, Promised] = {}
        self._graphs = self._decode_graphs()
        self._ahead: DecodeStep | None = None
        self._requests: dict[str, Request] = {}
        self._arrivals = 0
        self.sampled_tokens = 0
        self.prompt_tokens = 0
        self.imbalances = 0

    def _sequence_states(self) -> SequenceStates | None:
        """None where no layer keeps any."""
        decoder, limits = self._decoder, self._limits
        if not decoder.config.recurrent:
            return None
        return SequenceStates(
            decoder.config, limits.rows, limits.snapshots, decoder.device, decoder.dtype
        )

    def _decode_graphs(self) -> DecodeGraphs | None:
        """None where there is no GPU, or no Triton for it."""
        if self._decoder.device.type != "cuda":
            return None
        try:
            from tinkex.engine.sampling.decode_graph import DecodeGraphs
        except ImportError:
            return None
        rows, context = self._limits.rows, self.context
        return DecodeGraphs(self._decoder, self._cache, self._drawer, rows, context, self._states)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything; not while all that is left waits for its grammar."""
        compiled = any(future.done() for future in self._compiling.values())
        return compiled or len(self._requests) > len(self._compiling)

    @property
    def context(self) -> int:
        """The most tokens of one prompt and its sample together."""
        return min(self._limits.max_context, self.pool.total * PAGE_SIZE)

    def prepare(self) -> bool:
        """Do a piece of what the first step would have to do; False if nothing is left."""
        if self._forward.prepare():
            return True
        return self._graphs is not None and self._graphs.prepare()

    def submit(self, command: Sample, wake: Callable[[], None] = lambda: None) -> None:
        """Queue a command; `step` answers it. Raises UserError, having changed nothing. Where a
        grammar has to be compiled first, `wake` is called, by another thread, once it is."""
        if command.op in self._requests:
            raise UserError(f"op: {command.op!r} is under way already; choose another")
        vocab = self._decoder.config.vocab_size
        room = check_sample(command, vocab_size=vocab, max_tokens_total=self.context)
        params, ending = command.params, self._ending
        stopping = Stopping(params.stop, ending.eos, room, ending.tokenizer, params.stop_at_eos)
        compiled = self._compiled(command)
        version = self.versions.acquire(command.weights)
        request = self._request(command, version, stopping)
        self._requests[command.op] = request
        if compiled is None:
            self.scheduler.add(request.branches[0])
        else:
            self._compiling[command.op] = compiled
            compiled.add_done_callback(lambda _: wake())

    def _compiled(self, command: Sample) -> Promised | None:
        if command.grammar is None:
            return None
        return self.grammars.compiled(command.grammar, command.lane)

    def _begin_compiled(self) -> list[Event]:
        """Queue those whose grammar is there by now; fail those who will have none."""
        failed: list[Event] = []
        for op in [op for op, future in self._compiling.items() if future.done()]:
            request, future = self._requests[op], self._compiling.pop(op)
            error = future.exception()
            if error is None:
                request.grammar = future.result()
                self._constrain(request.branches[0])
                self.scheduler.add(request.branches[0])
            else:
                kind: FailKind = "user" if isinstance(error, UserError) else "server"
                failed.append(self._fail(request, kind, str(error)))
        return failed

    def cancel(self, op: str) -> Failed | None:
        """Stop the command `op` and free its pages now; None if it is not under way."""
        if op not in self._requests:
            return None
        return self._fail(self._requests[op], "cancelled", "the sample was cancelled")

    def abort(self, message: str) -> list[Event]:
        """Fail everything under way, and forget all cached pages."""
        failed: list[Event] = [
            self._fail(request, "server", message) for request in list(self._requests.values())
        ]
        self.pool.forget_all()
        return failed

    def step(self) -> list[Event]:
        """Compute one step; returns what became known by it. Nothing under way, nothing done."""
        failed = self._begin_compiled() if self._compiling else []
        ahead, self._ahead = self._ahead, None
        with torch.inference_mode():
            if ahead is not None and any(self._continues(branch) for branch in ahead.branches):
                self.scheduler.pacing.planned({}, set())
                requests, events = self._finish_decode(ahead)
            else:
                requests, events = self._planned()
        for request in requests:
            events.extend(self._report(request))
        return failed + events

    def took(self, seconds: float) -> None:
        """Note what the oldest step took of those not yet accounted for."""
        self.scheduler.pacing.took(seconds)

    def _planned(self) -> tuple[Iterable[Request], list[Event]]:
        """Compute what the scheduler plans next."""
        chunks = self._with_guesses(sorted(self._plan(), key=_by_version))
        if not chunks:
            return (), []
        if self._graphs is not None and self._graphs.takes(chunks):
            return self._finish_decode(self._graphs.launch([chunk.branch for chunk in chunks]))
        tokens = sum(chunk.stop - chunk.start for chunk in chunks)
        with threads(threads_for(self._decoder.parameters, tokens)):
            hidden = self._forward.hidden(chunks)
            self._score(chunks, hidden)
            events = self._draw(chunks, hidden)
        return {id(c.branch.request): c.branch.request for c in chunks}.values(), events

    # ---- one step

    def _plan(self) -> list[Chunk]:
        """What the scheduler plans. With states, prompts are cut at the end of the last page that
        can be found again: there a snapshot is kept."""
        chunks = self.scheduler.plan()
        return chunks if self._states is None else [_cut_at_page(chunk) for chunk in chunks]

    def _with_guesses(self, chunks: list[Chunk]) -> list[Chunk]:
        """If all of these are next tokens: with guesses in the rows that cost nothing."""
        spare = self._forward.free_rows - sum(c.stop - c.start for c in chunks)
        if spare <= 0 or not all(c.branch.started and c.completes for c in chunks):
            return chunks
        return [
            _guessing(chunk, spare // len(chunks) + (index < spare % len(chunks)))
            for index, chunk in enumerate(chunks)
        ]

    def _finish_decode(self, step: DecodeStep) -> tuple[Iterable[Request], list[Event]]:
        """Take what a decode step under way draws; whoever ended meanwhile draws nothing.

        Before waiting for it, the step after it is started if it can only be of the same branches:
        the device then computes while this process keeps its books.
        """
        live = [
            (row, branch) for row, branch in enumerate(step.branches) if self._continues(branch)
        ]
        branches = [branch for _, branch in live]
        if any(branch.request.shaped for branch in branches):
            events = self._finish_shaped(step, branches)
        else:
            assert self._graphs is not None
            if not step.is_drawn:
                self._graphs.draw(step, live)
            if self._states is not None:  # what is kept of states the next step would move on
                self._decoded(branches)
            if len(live) == step.rows and self._room_ahead(branches):
                self._ahead = self._graphs.launch(branches, after=step)
            if self._states is None:
                self._decoded(branches)
            tokens, logprobs = step.drawn()
            picked = [tokens[row] for row, _ in live], [logprobs[row] for row, _ in live]
            events = self._append(branches, *picked)
        return {id(b.request): b.request for b in branches}.values(), events

    def _finish_shaped(self, step: DecodeStep, branches: Sequence[Branch]) -> list[Event]:
        """Draw from the logits: such a step is read at once, so all its branches are there."""
        self._decoded(branches)
        events: list[Event] = []
        for begin in range(0, len(branches), self._block):
            part = slice(begin, begin + self._block)
            turns = [Turn(branch, branch.length - 1) for branch in branches[part]]
            events.extend(self._draw_from(turns, step.logits(part.start, part.stop)))
        return events

    def _decoded(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            self._computed(branch, branch.length)

    def _continues(self, branch: Branch) -> bool:
        # The same name may stand for another request by now.
        request = branch.request
        return branch.reason is None and self._requests.get(request.command.op) is request

    def _room_ahead(self, branches: Sequence[Branch]) -> bool:
        """Whether the step after the next can start now: nobody waits, nobody is sure to end, and
        there are pages for all. They are taken here."""
        if self.scheduler.waiting or len(branches) != len(self.scheduler.active):
            return False
        if any(len(b.generated) + 1 >= b.request.stopping.max_tokens for b in branches):
            return False
        short = [b for b in branches if b.length >= len(b.pages) * PAGE_SIZE]
        if len(short) > self.pool.available:
            return False
        for branch in short:
            branch.pages.extend(self.pool.take(1))
        return True

    def _score(self, chunks: Sequence[Chunk], hidden: Tensor) -> None:
        """Give each prompt's scores the logits of the rows they ask about."""
        first = 0
        for chunk in chunks:
            request, rows = chunk.branch.request, chunk.branch.request.scores.rows
            start, stop = max(chunk.start, rows.start), min(chunk.stop, rows.stop)
            if not chunk.branch.started and start < stop:
                offset = first - chunk.start
                for begin in range(start, stop, self._block):
                    end = min(begin + self._block, stop)
                    part = hidden[offset + begin : offset + end]
                    logits = self._forward.logits(part, [request.version] * (end - begin))
                    request.scores.take(begin, logits, self._drawer)
            first += chunk.stop - chunk.start

    def _draw(self, chunks: Sequence[Chunk], hidden: Tensor) -> list[Event]:
        """Record what was computed, draw every next token that can be, and fork new samples."""
        ready: list[tuple[int, Turn]] = []
        row = 0
        for chunk in chunks:
            self._computed(chunk.branch, chunk.known)
            if chunk.completes:
                ready.extend(self._turns(chunk, row - chunk.start))
            row += chunk.stop - chunk.start
        events: list[Event] = []
        for begin in range(0, len(ready), self._block):
            events.extend(self._draw_block(ready[begin : begin + self._block], hidden))
        self._place_forks([turn.branch for _, turn in ready])
        return events

    def _turns(self, chunk: Chunk, offset: int) -> Iterator[tuple[int, Turn]]:
        """The draws after a chunk whose position p is row offset + p, each with its row."""
        last = chunk.known - 1
        for branch in self._continuing(chunk.branch):
            yield offset + last, Turn(branch, last)
        for count in range(1, len(chunk.guesses) + 1):
            yield offset + last + count, Turn(chunk.branch, last + count, chunk.guesses[:count])

    def _draw_block(self, ready: Sequence[tuple[int, Turn]], hidden: Tensor) -> list[Event]:
        rows = sorted({row for row, _ in ready})
        versions = {row: turn.branch.request.version for row, turn in ready}
        logits = self._forward.logits(hidden[rows], [versions[row] for row in rows])
        if len(rows) < len(ready):
            logits = logits[[rows.index(row) for row, _ in ready]]
        return self._draw_from([turn for _, turn in ready], logits)

    def _draw_from(self, turns: Sequence[Turn], logits: Tensor) -> list[Event]:
        rules = [turn.branch.request.rule for turn in turns]
        scores = steered(logits, [turn.changes for turn in turns])
        ids = self._drawer.draw(scores, rules, [turn.key for turn in turns])
        rows = confirmed(turns, ids.tolist())
        if len(rows) < len(turns):
            turns, ids, logits = [turns[row] for row in rows], ids[rows], logits[rows]
        total = logsumexp(logits)
        logprobs = (logits.gather(1, ids[:, None])[:, 0] - total).tolist()
        best = self._best(turns, logits, total)
        events: list[Event] = []
        for row, (turn, token) in enumerate(zip(turns, ids.tolist(), strict=True)):
            if not turn.due:
                continue
            if turn.guess is not None:
                self._computed(turn.branch, turn.position + 1)
            width = turn.branch.request.command.topk_sample_logprobs
            if best is not None and width:
                turn.branch.topk_ids.append(best[0][row][:width])
                turn.branch.topk_logprobs.append(best[1][row][:width])
            events.extend(self._append([turn.branch], [token], [logprobs[row]]))
        return events

    def _append(
        self, branches: Sequence[Branch], tokens: Sequence[int], logprobs: Sequence[float]
    ) -> list[Event]:
        """Give each branch its token; a request whose numbers are not finite fails."""
        events: list[Event] = []
        for branch, token, logprob in zip(branches, tokens, logprobs, strict=True):
            if branch.request.command.op not in self._requests:
                continue
            broken = branch.constraint and branch.constraint.failed
            if broken or not math.isfinite(logprob):
                events.append(self._fail(branch.request, "user", broken or _NOT_FINITE))
                continue
            branch.append(token, logprob)
            if branch.constraint is not None and branch.constraint.failed:
                events.append(self._fail(branch.request, "user", branch.constraint.failed))
            self.sampled_tokens += 1
        return events

    def _best(
        self, turns: Sequence[Turn], logits: Tensor, total: Tensor
    ) -> tuple[list[list[int]], list[list[float]]] | None:
        """The likeliest ids of each row and their logprobs, as many as any of them asks for."""
        width = max(turn.branch.request.command.topk_sample_logprobs for turn in turns)
        if not width:
            return None
        best, ids = logits.topk(width, dim=-1)
        return ids.tolist(), (best - total[:, None]).tolist()

    # ---- branches

    def _computed(self, branch: Branch, length: int) -> None:
        """Note that its first `length` tokens are in the cache; make full pages findable."""
        if not branch.started:
            self.prompt_tokens += length - branch.computed
        before, branch.computed = branch.computed // PAGE_SIZE, length
        full = length // PAGE_SIZE
        if full > before:
            branch.keys.extend(branch.tokens(0, full * PAGE_SIZE))
            for page in range(before, full):
                self.pool.file(branch.pages[page], branch.keys.keys[page])
        if isinstance(self.pool, StatefulPagePool) and length == _kept_length(branch):
            self.pool.keep(branch, branch.keys.keys[full - 1])

    def _continuing(self, branch: Branch) -> Iterable[Branch]:
        """The branches that draw from this one's logits: itself, or all samples of its prompt."""
        request = branch.request
        if branch.started:
            return [branch]
        for index in range(1, request.command.num_samples):
            request.branches.append(self._branch(request, index))
        for one in request.branches:
            one.started = True
            one.reason = request.stopping.reason(())
        return [one for one in request.branches if one.reason is None]

    def _place_forks(self, branches: Sequence[Branch]) -> None:
        """Give samples that just began the pages of their prompt, then let ended ones go."""
        for branch in branches:
            fresh = branch.index and not branch.pages and branch.reason is None
            if fresh and branch.request.command.op in self._requests:
                self._fork(branch.request.branches[0], branch)

    def _fork(self, source: Branch, branch: Branch) -> None:
        """Share full pages, copy the last one; without room the branch queues and starts over."""
        full = source.computed // PAGE_SIZE
        partial = source.pages[full : self.pool.pages_for(source.computed)]
        room = len(partial) <= self.pool.available
        if not room or (self._states is not None and not self._states.fork(source, branch)):
            self.scheduler.add(branch)
            return
        self.pool.hold(source.pages[:full])
        copies = self.pool.take(len(partial))
        for old, new in zip(partial, copies, strict=True):
            self._cache.copy_page(old, new)
        branch.pages = source.pages[:full] + copies
        branch.computed = source.computed
        self.scheduler.activate(branch)

    def _report(self, request: Request) -> list[Event]:
        """New tokens if streamed, the result if all samples ended; ended ones free their pages."""
        op = request.command.op
        if op not in self._requests:
            return []
        events: list[Event] = []
        for branch in request.branches:
            if request.command.stream and len(branch.generated) > branch.streamed:
                events.append(_progress(op, branch))
            if branch.reason is not None and branch.pages:
                self.scheduler.remove(branch)
        if request.done:
            self._forget(request)
            seconds = time.monotonic() - request.started
            events.append(Done(op, _result(request), seconds))
        return events

    def _request(self, command: Sample, version: Version, stopping: Stopping) -> Request:
        seed = command.params.seed
        seed = secrets.randbits(64) if seed is None else seed
        prompt = np.ascontiguousarray(command.prompt, dtype=np.int32)
        scores = PromptScores(command, prompt, seed)
        self._arrivals += 1
        request = Request(
            command, self._arrivals, seed, version, stopping, scores, prompt, time.monotonic()
        )
        request.branches.append(self._branch(request, 0))
        return request

    def _branch(self, request: Request, index: int) -> Branch:
        branch = Branch(request, index, PageKeys(request.version.id, PAGE_SIZE))
        return self._constrain(branch)

    def _constrain(self, branch: Branch) -> Branch:
        """Put it at the start of its request's grammar, if that is there."""
        request = branch.request
        if request.grammar is not None:
            ends = request.stopping.ids.union(self._ending.eos)
            vocab = self._decoder.config.vocab_size
            branch.constraint = Constraint(request.grammar, vocab, ends)
        return branch

    def _fail(self, request: Request, kind: FailKind, message: str) -> Failed:
        for branch in request.branches:
            self.scheduler.remove(branch)
        self._forget(request)
        return Failed(request.command.op, kind, message)

    def _forget(self, request: Request) -> None:
        del self._requests[request.command.op]
        self._compiling.pop(request.command.op, None)
        self.versions.release(request.version)
        if not self._requests:
            self._check_idle()

    def _check_idle(self) -> None:
        """With nothing under way every page must be free; if not, say so and start anew."""
        try:
            self.pool.check_idle()
        except RuntimeError:
            logger.exception("the page accounts are wrong; the cache starts anew")
            self.imbalances += 1
            self.pool.reset()

    @property
    def _block(self) -> int:
        """Rows of logits made at once."""
        return max(1, self._limits.logit_elements // self._decoder.config.vocab_size)


_NOT_FINITE = (
    "weights: the model's logits are not finite, so nothing can be drawn from them; "
    "load weights from before the training diverged"
)


def _kept_length(branch: Branch) -> int:
    """The length at which a branch's state is worth keeping next: at the end of a page, its
    prompt's last that a like prompt can reuse, or any once it decodes."""
    length = branch.computed if branch.started else len(branch.request.prompt) - 1
    return max(length // PAGE_SIZE, 1) * PAGE_SIZE


def _cut_at_page(chunk: Chunk) -> Chunk:
    end = _kept_length(chunk.branch)
    inside = not chunk.branch.started and chunk.start < end < chunk.stop
    return replace(chunk, stop=end) if inside else chunk


def _guessing(chunk: Chunk, count: int) -> Chunk:
    """With up to `count` guesses, as far as its page and the request's limit have room."""
    branch = chunk.branch
    room = len(branch.pages) * PAGE_SIZE - chunk.stop
    left = branch.request.stopping.max_tokens - len(branch.generated) - 1
    guesses = branch.guess(min(count, room, left)) if min(count, room, left) > 0 else ()
    return replace(chunk, stop=chunk.stop + len(guesses), guesses=guesses)


def _by_version(chunk: Chunk) -> tuple[int, tuple[int, int]]:
    return chunk.branch.request.version.id, chunk.branch.order


def _progress(op: str, branch: Branch) -> Progress:
    start, branch.streamed = branch.streamed, len(branch.generated)
    return Progress(
        op,
        branch.index,
        np.asarray(branch.generated[start:], np.int32),
        np.asarray(branch.logprobs[start:], np.float32),
        branch.topk(start),
    )


def _result(request: Request) -> SampleResult:
    return SampleResult(
        tuple(branch.result() for branch in request.branches),
        request.scores.logprobs,
        request.scores.topk,
        request.scores.targets(),
        request.scores.alternatives,
        request.cached_tokens or 0,
    )
