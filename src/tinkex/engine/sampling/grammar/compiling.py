"""Grammars being compiled, fairly between lanes, and those kept for the next request.

A grammar is first tried in a process that can be killed, then compiled here in a thread. One at a
time, lanes in turn: a client with a hundred hostile grammars makes others wait for one of them.
Refusals are remembered as well as compiled grammars.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tinkex.engine.errors import EngineError, UserError
from tinkex.engine.messages import Grammar
from tinkex.engine.sampling.grammar.lark import written
from tinkex.engine.sampling.grammar.trial import Trial
from tinkex.engine.sampling.grammar.vocabulary import MAX_CHARACTERS, Vocabulary, is_installed

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar at its start, copied by each sample, and how its vocabulary spells bytes."""

    matcher: LLMatcher
    tokens: LLTokenizer


Promised: TypeAlias = Future[Compiled]

KEPT_BYTES = 256 << 20
KEPT_REFUSALS = 256
_LEAST_BYTES = 1 << 16
"""Least bytes that a grammar counts: small ones fit into memory that the process had already."""


class Grammars:
    """The grammars of one model."""

    def __init__(self, tokenizer: Tokenizer | None, size: int, eos: tuple[int, ...]) -> None:
        self._tokenizer, self._size, self._eos = tokenizer, size, eos
        self._lock = threading.Condition()
        self._queues: OrderedDict[str, deque[str]] = OrderedDict()
        self._wanted: dict[str, Promised] = {}
        self._kept: OrderedDict[str, tuple[Compiled, int]] = OrderedDict()
        self._refused: OrderedDict[str, UserError] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._closed = False

    def compiled(self, wanted: Grammar, lane: str) -> Promised:
        """A future of the compiled grammar. Raises UserError if it can never be compiled."""
        self._check_possible()
        grammar = written(wanted, self._added)
        if len(grammar) > MAX_CHARACTERS:
            raise UserError(
                f"grammar: has {len(grammar)} characters; at most {MAX_CHARACTERS} are allowed"
            )
        with self._lock:
            future = self._known(grammar) or self._wanted.get(grammar)
            if future is None:
                future = self._wanted[grammar] = Future()
                self._queues.setdefault(lane, deque()).append(grammar)
                self._start()
                self._lock.notify()
            return future

    def close(self) -> None:
        """End the thread and the process. Safe to call again."""
        with self._lock:
            self._closed = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join()

    @functools.cached_property
    def _added(self) -> dict[str, int]:
        assert self._tokenizer is not None
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items()}

    def _check_possible(self) -> None:
        if self._tokenizer is None:
            raise UserError("grammar: the model has no tokenizer.json, so none can be followed")
        if not is_installed():
            raise UserError(
                "grammar: this server cannot follow one; its operator has to install llguidance"
                " (pip install 'tinkex[server]')"
            )

    def _known(self, grammar: str) -> Promised | None:
        done: Promised = Future()
        if grammar in self._kept:
            self._kept.move_to_end(grammar)
            done.set_result(self._kept[grammar][0])
            return done
        if grammar in self._refused:
            done.set_exception(self._refused[grammar])
            return done
        return None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="engine-grammar", daemon=True)
            self._thread.start()

    # ---- in the thread

    def _run(self) -> None:
        assert self._tokenizer is not None
        text = self._tokenizer.to_str()
        trial, vocabulary = Trial(text, self._size, self._eos), None
        while (grammar := self._next()) is not None:
            try:
                size = max(_LEAST_BYTES, trial.size_of(grammar))
                vocabulary = vocabulary or Vocabulary(text, self._size, self._eos)
                found = Compiled(vocabulary.compile(grammar), vocabulary.tokens)
                self._keep(grammar, found, size)
            except UserError as error:
                self._refuse(grammar, error)
            except Exception as error:
                self._taken(grammar).set_exception(EngineError(f"grammar: {error}"))
        trial.close()

    def _next(self) -> str | None:
        """The next grammar of the lane whose turn it is; None when closed."""
        with self._lock:
            while not self._queues and not self._closed:
                self._lock.wait()
            if self._closed:
                return None
            lane, queue = self._queues.popitem(last=False)
            grammar = queue.popleft()
            if queue:
                self._queues[lane] = queue
            return grammar

    def _keep(self, grammar: str, compiled: Compiled, size: int) -> None:
        with self._lock:
            self._kept[grammar] = compiled, size
            while sum(kept for _, kept in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)
        self._taken(grammar).set_result(compiled)

    def _refuse(self, grammar: str, error: UserError) -> None:
        with self._lock:
            self._refused[grammar] = error
            if len(self._refused) > KEPT_REFUSALS:
                self._refused.popitem(last=False)
        self._taken(grammar).set_exception(error)

    def _taken(self, grammar: str) -> Promised:
        with self._lock:
            return self._wanted.pop(grammar)
