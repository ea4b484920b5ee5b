"""Serves sample commands: every `step` computes the scheduled tokens and returns what is new.

Owns the cache, the queue and the weights that can be sampled. Knows nothing of training, of
threads or of how events travel.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.cpu.threads import threads, threads_for
from tinkex.engine.errors import UserError
from tinkex.engine.messages import Done, Event, Failed, Sample
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.sampling.adapters import VersionStore
from tinkex.engine.sampling.cache.branch_pages import BranchPages
from tinkex.engine.sampling.cache.kept_rows import Floats
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, KeyValueCache
from tinkex.engine.sampling.cache.pages import PageKeys, PagePool
from tinkex.engine.sampling.cache.recurrent_states import states_for
from tinkex.engine.sampling.cache.state_pages import StatefulPagePool
from tinkex.engine.sampling.checks import NOT_FINITE, check_sample
from tinkex.engine.sampling.forward import Forward, cpu_decode, decode_graphs
from tinkex.engine.sampling.grammar.awaited import AwaitedGrammars
from tinkex.engine.sampling.grammar.compiling import Grammars
from tinkex.engine.sampling.limits import SamplerLimits
from tinkex.engine.sampling.model_end import Ending
from tinkex.engine.sampling.prompt_scoring import score_prompts
from tinkex.engine.sampling.request import Branch, Request, new_request
from tinkex.engine.sampling.scheduling.chunks import (
    Chunk,
    by_version,
    cut_at_page,
    with_guesses,
)
from tinkex.engine.sampling.scheduling.scheduler import Scheduler
from tinkex.engine.sampling.stopping import Stopping
from tinkex.engine.sampling.turns import Turn, drawer_for, drawn, turns_after

if TYPE_CHECKING:
    from tinkex.engine.sampling.gpu_decode.graph import DecodeStep

FailKind: TypeAlias = Literal["user", "server", "cancelled"]


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
        self._states = states_for(decoder, limits.rows, limits.snapshots)
        self.pool = (
            PagePool(limits.pages, PAGE_SIZE)
            if self._states is None
            else StatefulPagePool(limits.pages, PAGE_SIZE, self._states)
        )
        self._cache = KeyValueCache(config, limits.pages, device, decoder.dtype)
        places = None if self._states is None else limits.rows
        self.scheduler = Scheduler(self.pool, limits.rows, limits.step_tokens, places)
        self.versions = VersionStore(
            config, device, decoder.dtype, limits.adapter_bytes, read_adapter, steady=decoder.steady
        )
        self._pages = BranchPages(self.pool, self._cache, self._states, self.scheduler)
        self._forward = Forward(decoder, self._cache, self._states, self.context)
        self._decode = cpu_decode(decoder, self._cache)
        self._guess_rows = self._forward.free_rows if self._decode is None else 0
        self._drawer = drawer_for(decoder)
        self._block = max(1, limits.logit_elements // config.vocab_size)  # rows of logits at once
        self.grammars = Grammars(ending.tokenizer, config.vocab_size, ending.eos)
        self._compiling = AwaitedGrammars()
        self._graphs = decode_graphs(
            decoder, self._cache, self._drawer, limits.rows, self.context, self._states
        )
        self._ahead: DecodeStep | None = None
        self._requests: dict[str, Request] = {}
        self._arrivals = 0
        self.sampled_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether a step would do anything. False while all requests wait for their grammars."""
        return self._compiling.any_done or len(self._requests) > len(self._compiling)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens computed so far, without those found in the prefix cache."""
        return self._pages.prompt_tokens

    @property
    def imbalances(self) -> int:
        """How often the page accounts were found to be wrong."""
        return self._pages.imbalances

    @property
    def context(self) -> int:
        """The most tokens of one prompt and its sample together."""
        return min(self._limits.max_context, self.pool.total * PAGE_SIZE)

    def prepare(self) -> bool:
        """Prepare a piece of what first steps need; False if nothing is left to prepare."""
        if self._graphs is not None and self._graphs.prepare():
            return True
        return self._forward.prepare()

    def submit(self, command: Sample, wake: Callable[[], None] = lambda: None) -> None:
        """Queue a command; `step` answers it. Raises UserError, having changed nothing. If a
        grammar has to be compiled first, another thread calls `wake` once it is."""
        if command.op in self._requests:
            raise UserError(f"op: {command.op!r} is under way already; choose another")
        vocab = self._decoder.config.vocab_size
        room = check_sample(command, vocab_size=vocab, max_tokens_total=self.context)
        params, ending = command.params, self._ending
        stopping = Stopping(params.stop, ending.eos, room, ending.tokenizer, params.stop_at_eos)
        if command.thinking is not None and ending.tokenizer is None:
            raise UserError("thinking: the model has no tokenizer.json, so no end can be put to it")
        grammar = command.grammar
        compiled = self.grammars.compiled(grammar, command.lane) if grammar else None
        version = self.versions.acquire(command.weights)
        self._arrivals += 1
        request = new_request(command, self._arrivals, version, stopping)
        request.branches.append(self._branch(request, 0))
        self._requests[command.op] = request
        if compiled is None:
            self.scheduler.add(request.branches[0])
        else:
            self._compiling.add(request, compiled, wake)

    def _begin_compiled(self) -> list[Event]:
        """Queue requests whose grammar is compiled; fail those whose grammar was refused."""
        failed: list[Event] = []
        for request, error in self._compiling.done():
            if error is None:
                request.branches[0].constrain(self._ending, self._decoder.config.vocab_size)
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
        requests = list(self._requests.values())
        failed: list[Event] = [self._fail(request, "server", message) for request in requests]
        self.pool.forget_all()
        return failed

    def step(self) -> list[Event]:
        """Compute one step and return its events. Does nothing when nothing is under way."""
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
        """Record how long the oldest unaccounted step took."""
        self.scheduler.pacing.took(seconds)

    def _planned(self) -> tuple[Iterable[Request], list[Event]]:
        """Compute what the scheduler plans next."""
        chunks = with_guesses(sorted(self._plan(), key=by_version), self._guess_rows)
        if not chunks:
            return (), []
        if self._graphs is not None and self._graphs.takes(chunks):
            return self._finish_decode(self._graphs.launch([chunk.branch for chunk in chunks]))
        tokens = sum(chunk.stop - chunk.start for chunk in chunks)
        with threads(threads_for(self._decoder.parameters, tokens)):
            events = self._computed(chunks)
        return {id(c.branch.request): c.branch.request for c in chunks}.values(), events

    def _computed(self, chunks: Sequence[Chunk]) -> list[Event]:
        """Compute these chunks and draw every next token that they allow."""
        self._pages.begin(chunks)
        singles, rest = ((), chunks) if self._decode is None else self._decode.parted(chunks)
        branches = [chunk.branch for chunk in singles]
        logits = self._decode.logits(singles) if self._decode is not None and singles else None
        self._decoded(branches)
        events: list[Event] = []
        if rest and not self._drew_prompts(rest, events):
            hidden = self._forward.hidden(rest)
            score_prompts(rest, hidden, self._forward, self._drawer, self._block)
            events = self._draw(rest, hidden)
        if logits is not None:
            self._draw_singles(branches, logits, events)
        return events

    def _drew_prompts(self, chunks: Sequence[Chunk], events: list[Event]) -> bool:
        """Compute prompts in numpy and draw their first tokens, where that is possible."""
        logits = None if self._decode is None else self._decode.prompt_logits(chunks)
        if logits is None:
            return False
        ready = self._ready(chunks, range(1, len(chunks) + 1))
        if ready:
            rows, turns = zip(*ready, strict=True)
            self._draw_singles([turn.branch for turn in turns], logits[list(rows)], events)
        self._place_forks(ready)
        return True

    # ---- one step

    def _plan(self) -> list[Chunk]:
        """What the scheduler plans. With recurrent states, prompts are cut at the end of the last
        page that the prefix cache can find, because a snapshot is kept there."""
        chunks = self.scheduler.plan()
        return chunks if self._states is None else [cut_at_page(chunk) for chunk in chunks]

    def _finish_decode(self, step: DecodeStep) -> tuple[Iterable[Request], list[Event]]:
        """Take the draws of a decode step under way; branches that ended meanwhile are left out.

        Before waiting for it, the next step is started if it has the same branches for certain:
        the device then computes while this process does its accounting.
        """
        live = [
            (row, branch) for row, branch in enumerate(step.branches) if self._continues(branch)
        ]
        branches = [branch for _, branch in live]
        events: list[Event] = []
        if any(branch.request.shaped for branch in branches):
            events = self._finish_shaped(step, branches)
        else:
            assert self._graphs is not None
            if not step.is_drawn:
                self._graphs.draw(step, live)
            if self._states is not None:  # before the next step changes the states
                self._decoded(branches)
            if len(live) == step.rows and self._pages.room_ahead(branches):
                self._ahead = self._graphs.launch(branches, after=step)
            if self._states is None:
                self._decoded(branches)
            tokens, logprobs = step.drawn()
            picked = [tokens[row] for row, _ in live], [logprobs[row] for row, _ in live]
            for branch, token, logprob in zip(branches, *picked, strict=True):
                self._append(branch, token, logprob, events)
        return {id(b.request): b.request for b in branches}.values(), events

    def _finish_shaped(self, step: DecodeStep, branches: Sequence[Branch]) -> list[Event]:
        """Draw from the logits: such a step is read at once, so none of its branches has ended."""
        self._decoded(branches)
        events: list[Event] = []
        for begin in range(0, len(branches), self._block):
            part = slice(begin, begin + self._block)
            turns = [Turn(branch, branch.length - 1) for branch in branches[part]]
            events.extend(self._draw_from(turns, step.logits(part.start, part.stop)))
        return events

    def _draw_singles(
        self, branches: Sequence[Branch], logits: Floats, events: list[Event]
    ) -> None:
        """Draw after the last token of each of these."""
        assert self._decode is not None
        drawn = self._decode.drawn(branches, logits)
        if drawn is None:
            turns = [Turn(branch, branch.length - 1) for branch in branches]
            events.extend(self._draw_from(turns, torch.from_numpy(logits)))
            return
        for branch, token, logprob in zip(branches, *drawn, strict=True):
            self._append(branch, token, logprob, events)

    def _decoded(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            self._pages.computed(branch, branch.length)

    def _continues(self, branch: Branch) -> bool:
        # The same op may belong to another request by now.
        request = branch.request
        return branch.reason is None and self._requests.get(request.command.op) is request

    def _draw(self, chunks: Sequence[Chunk], hidden: Tensor) -> list[Event]:
        """Record what was computed, draw the next tokens, and fork new samples."""
        ready = self._ready(chunks, accumulate(chunk.stop - chunk.start for chunk in chunks))
        events: list[Event] = []
        for begin in range(0, len(ready), self._block):
            events.extend(self._draw_block(ready[begin : begin + self._block], hidden))
        self._place_forks(ready)
        return events

    def _ready(self, chunks: Sequence[Chunk], ends: Iterable[int]) -> list[tuple[int, Turn]]:
        """Record what was computed; returns every possible draw with its row. Each chunk's last
        row is the one before its end."""
        ready: list[tuple[int, Turn]] = []
        for chunk, end in zip(chunks, ends, strict=True):
            self._pages.computed(chunk.branch, chunk.known)
            if chunk.completes:
                ready.extend(turns_after(chunk, self._continuing(chunk.branch), end - chunk.stop))
        return ready

    def _place_forks(self, ready: Iterable[tuple[int, Turn]]) -> None:
        forks = (turn.branch for _, turn in ready if turn.branch.index)
        self._pages.place_forks(branch for branch in forks if self._continues(branch))

    def _draw_block(self, ready: Sequence[tuple[int, Turn]], hidden: Tensor) -> list[Event]:
        versions = {row: turn.branch.request.version for row, turn in ready}
        rows = list(versions)
        part = hidden if len(rows) == len(hidden) else hidden[rows]
        logits = self._forward.logits(part, list(versions.values()))
        if len(rows) < len(ready):
            places = {row: place for place, row in enumerate(rows)}
            logits = logits[[places[row] for row, _ in ready]]
        return self._draw_from([turn for _, turn in ready], logits)

    def _draw_from(self, turns: Sequence[Turn], logits: Tensor) -> list[Event]:
        events: list[Event] = []
        for turn, token, logprob, topk in drawn(self._drawer, turns, logits):
            if not turn.due:
                continue
            if turn.guess is not None:
                self._pages.computed(turn.branch, turn.position + 1)
            if topk is not None:
                turn.branch.rank(*topk)
            self._append(turn.branch, token, logprob, events)
        return events

    def _append(self, branch: Branch, token: int, logprob: float, events: list[Event]) -> None:
        """Append a token to a branch. A request whose numbers are not finite fails."""
        request, constraint = branch.request, branch.constraint
        if request.command.op not in self._requests:
            return
        broken = None if constraint is None else constraint.failed
        if broken or not math.isfinite(logprob):
            events.append(self._fail(request, "user", broken or NOT_FINITE))
            return
        branch.append(token, logprob)
        if constraint is not None and constraint.failed:
            events.append(self._fail(request, "user", constraint.failed))
        self.sampled_tokens += 1

    # ---- branches

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

    def _report(self, request: Request) -> list[Event]:
        """Events for new streamed tokens and for the result. Ended branches free their pages."""
        op = request.command.op
        if op not in self._requests:
            return []
        events: list[Event] = []
        for branch in request.branches:
            if request.command.stream and len(branch.generated) > branch.streamed:
                events.append(branch.progress())
            if branch.reason is not None and branch.pages:
                self._pages.keep_routes(branch)
                self.scheduler.remove(branch)
        if request.done:
            self._forget(request)
            seconds = time.monotonic() - request.started
            events.append(Done(op, request.result(), seconds))
        return events

    def _branch(self, request: Request, index: int) -> Branch:
        branch = Branch(request, index, PageKeys(request.version.id, PAGE_SIZE))
        branch.constrain(self._ending, self._decoder.config.vocab_size)
        return branch

    def _fail(self, request: Request, kind: FailKind, message: str) -> Failed:
        for branch in request.branches:
            self.scheduler.remove(branch)
        self._forget(request)
        return Failed(request.command.op, kind, message)

    def _forget(self, request: Request) -> None:
        del self._requests[request.command.op]
        self._compiling.discard(request)
        self.versions.release(request.version)
        if not self._requests:
            self._pages.check_idle()
