"""A sample command while it is served: one request, and a branch for each of its samples.

The first branch computes the prompt; the others then start from its pages.
"""

from __future__ import annotations

import functools
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.collectives import agree
from tinkex.engine.messages import Progress, Routes, Sample, SampleResult, Sequence, TopK
from tinkex.engine.sampling.adapters import Version
from tinkex.engine.sampling.cache.pages import PageKeys
from tinkex.engine.sampling.controls import Changes, Counts, Steering
from tinkex.engine.sampling.draw import SAMPLE, Key, Rule, key_state, keys_from, rule_of
from tinkex.engine.sampling.grammar.constraint import Constraint
from tinkex.engine.sampling.grammar.thinking import Thought
from tinkex.engine.sampling.prompt_logprobs import PromptScores
from tinkex.engine.sampling.speculation import Past
from tinkex.engine.sampling.stopping import Stopping, StopReason

if TYPE_CHECKING:
    from tinkex.engine.sampling.grammar.compiling import Compiled
    from tinkex.engine.sampling.model_end import Ending


@dataclass(eq=False)
class Request:
    """What all branches of one command share."""

    command: Sample  # as it arrived
    arrival: int  # place in the order of all requests
    seed: int  # seed of all its draws
    version: Version  # weights it samples with
    stopping: Stopping  # what ends a branch
    scores: PromptScores  # the requested logprobs of the prompt
    prompt: NDArray[np.int32]  # token ids
    started: float  # when, on the clock of `time.monotonic`
    cached_tokens: int | None = None  # found in the cache; None: not looked up yet
    grammar: Compiled | None = None  # that the answer must follow
    branches: list[Branch] = field(default_factory=list)  # one per sample

    @functools.cached_property
    def rule(self) -> Rule:
        params = self.command.params
        return rule_of(params.temperature, params.top_k, params.top_p, self.command.controls.min_p)

    @functools.cached_property
    def steering(self) -> Steering:
        return Steering(self.command.controls, self.prompt)

    @functools.cached_property
    def shaped(self) -> bool:
        """Whether a draw takes more than one race over all logits or some of them."""
        rule = self.rule
        filtered = rule.filtered and not rule.greedy
        topk = bool(self.command.topk_sample_logprobs)
        return filtered or topk or self.steering.changes_logits

    @property
    def done(self) -> bool:
        return all(branch.reason is not None for branch in self.branches)

    def result(self) -> SampleResult:
        return SampleResult(
            tuple(branch.result() for branch in self.branches),
            self.scores.logprobs,
            self.scores.topk,
            self.scores.targets(),
            self.scores.alternatives,
            self.cached_tokens or 0,
        )


@dataclass(slots=True, eq=False)
class Branch:
    """One sample: its tokens so far, and the pages that hold the first `computed` of them."""

    request: Request  # the request it belongs to
    index: int  # its index among the request's samples
    keys: PageKeys  # keys of its pages in the prefix cache
    generated: list[int] = field(default_factory=list)  # tokens after the prompt
    logprobs: list[float] = field(default_factory=list)  # of the generated tokens
    # likeliest tokens at each place, if asked for
    topk_ids: list[NDArray[np.int32]] = field(default_factory=list)
    topk_logprobs: list[NDArray[np.float32]] = field(default_factory=list)  # of those tokens
    pages: list[int] = field(default_factory=list)  # pages that hold its keys and values
    computed: int = 0  # number of tokens whose keys and values they hold
    streamed: int = 0  # number of generated tokens that were sent
    started: bool = False  # whether it has been in a step
    reason: StopReason | None = None  # why it ended; None: it goes on
    past: Past = field(default_factory=Past)  # what guesses are made from (speculative decoding)
    counts: Counts | None = None  # its tokens, counted for penalties
    constraint: Constraint | None = None  # its state in the grammar
    thought: Thought | None = None  # the state of its reasoning, if that has a budget
    routes: Routes | None = None  # experts its tokens went to, if asked for
    draws: int = field(init=False)
    """What the keys of all its draws have in common."""
    draw_keys: list[Key] = field(default_factory=list)
    """Keys of the draws from `keyed_from` on, made for many at once, which takes as long as for
    one."""
    keyed_from: int = 0  # place of the first of these

    def __post_init__(self) -> None:
        self.draws = key_state(self.request.seed, SAMPLE, self.index)

    def constrain(self, ending: Ending, vocab_size: int) -> None:
        """Start it in its request's grammar, if that is compiled, and in its reasoning."""
        request, thinking = self.request, self.request.command.thinking
        if request.grammar is not None:
            ends = request.stopping.ids.union(ending.eos)
            self.constraint = Constraint(request.grammar, vocab_size, ends)
        if thinking is not None and ending.tokenizer is not None:
            self.thought = Thought(thinking, ending.tokenizer, vocab_size)

    def draw_key(self, place: int) -> Key:
        """The key of the draw of its token `place`."""
        offset = place - self.keyed_from
        if not 0 <= offset < len(self.draw_keys):
            self.draw_keys, self.keyed_from, offset = keys_from(self.draws, place), place, 0
        return self.draw_keys[offset]

    @property
    def lane(self) -> str:
        """The tenant it belongs to."""
        return self.request.command.lane

    @property
    def order(self) -> tuple[int, int]:
        """Its age: within a lane the older never gives way to the younger."""
        return self.request.arrival, self.index

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.generated)

    @property
    def pending(self) -> int:
        """Number of tokens whose keys and values are still to be computed."""
        return self.length - self.computed

    def tokens(self, start: int, stop: int) -> NDArray[np.int32]:
        prompt, split = self.request.prompt, len(self.request.prompt)
        if stop <= split:
            return prompt[start:stop]
        after = np.asarray(self.generated[max(0, start - split) : stop - split], dtype=np.int32)
        return after if start >= split else np.concatenate([prompt[start:], after])

    def token(self, position: int) -> int:
        after = position - len(self.request.prompt)
        return int(self.request.prompt[position]) if after < 0 else self.generated[after]

    def guess(self, count: int) -> tuple[int, ...]:
        """Up to `count` guesses of its next tokens; none where a budget of reasoning may end."""
        if self.thought is not None:
            return ()
        self.past.extend(self.tokens(len(self.past), self.length).tolist())
        guesses = self.past.guess(count)
        return guesses if self.constraint is None else self.constraint.acceptable(guesses)

    def changes(self, guesses: tuple[int, ...]) -> Changes:
        """How the request's controls change the logits after its tokens and `guesses`."""
        return Changes(self.request.steering, self._counted(guesses), self.mask(guesses))

    @property
    def steered(self) -> bool:
        """Whether it draws from other logits than the model's own."""
        return self.masked or self.request.steering.changes_logits

    @property
    def masked(self) -> bool:
        """Whether only some tokens may be drawn."""
        limited = self.constraint is not None or self.thought is not None
        return limited or self.request.steering.allowed is not None

    def mask(self, guesses: tuple[int, ...] = ()) -> NDArray[np.int32] | None:
        """The tokens that may follow its own and `guesses`, one bit each; None if all may."""
        allowed = self.request.steering.allowed
        if self.thought is not None and self.thought.ends:
            return self.thought.mask()
        if self.constraint is None:
            return allowed if self.thought is None or allowed is not None else self.thought.mask()
        mask = self.constraint.mask(guesses)
        if allowed is not None:
            mask[: len(allowed)] &= allowed
            mask[len(allowed) :] = 0
        return mask

    def _counted(self, guesses: tuple[int, ...]) -> Counts | None:
        steering = self.request.steering
        if not steering.counts:
            return None
        if self.counts is None:
            self.counts = steering.none_counted()
        self.counts.extend(self.generated[len(self.counts) :])
        return self.counts.followed_by(guesses)

    def append(self, token: int, logprob: float) -> None:
        self.generated.append(token)
        self.logprobs.append(logprob)
        self.reason = self.request.stopping.reason(self.generated)
        if self.constraint is not None and self.constraint.take(token):
            self.reason = "stop"
        if self.thought is not None:
            self.thought.take(self.generated)

    def rank(self, ids: list[int], logprobs: list[float]) -> None:
        """Keep the likeliest tokens at the place of its next token. As arrays, because they are
        kept to the end and there may be millions."""
        self.topk_ids.append(np.asarray(ids, np.int32))
        self.topk_logprobs.append(np.asarray(logprobs, np.float32))

    def result(self) -> Sequence:
        assert self.reason is not None
        return Sequence(
            np.asarray(self.generated, np.int32),
            np.asarray(self.logprobs, np.float32),
            self.reason,
            self.topk(0),
            self.routes,
        )

    def progress(self) -> Progress:
        """The tokens since this was last called."""
        start, self.streamed = self.streamed, len(self.generated)
        return Progress(
            self.request.command.op,
            self.index,
            np.asarray(self.generated[start:], np.int32),
            np.asarray(self.logprobs[start:], np.float32),
            self.topk(start),
        )

    def topk(self, start: int) -> TopK | None:
        """The likeliest tokens at the places from `start` on; None if not asked for."""
        width = self.request.command.topk_sample_logprobs
        if not width:
            return None
        return TopK(
            np.asarray(self.topk_ids[start:], np.int32).reshape(-1, width),
            np.asarray(self.topk_logprobs[start:], np.float32).reshape(-1, width),
        )


def new_request(command: Sample, arrival: int, version: Version, stopping: Stopping) -> Request:
    """A request without branches. Without a seed it gets an unpredictable one."""
    seed = command.params.seed
    seed = agree(secrets.randbits(64)) if seed is None else seed
    prompt = np.ascontiguousarray(command.prompt, dtype=np.int32)
    scores = PromptScores(command, prompt, seed)
    return Request(command, arrival, seed, version, stopping, scores, prompt, time.monotonic())
