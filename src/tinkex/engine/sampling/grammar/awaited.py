"""Requests that wait for their grammar to be compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tinkex.engine.collectives import agree
from tinkex.engine.sampling.grammar.compiling import Promised
from tinkex.engine.sampling.request import Request


class AwaitedGrammars:
    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Request, Promised]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def any_done(self) -> bool:
        done = any(promised.done() for _, promised in self._waiting.values())
        return agree(done) if self._waiting else False

    def add(self, request: Request, promised: Promised, wake: Callable[[], None]) -> None:
        """Let the request wait; another thread calls `wake` when that ends."""
        self._waiting[request.command.op] = request, promised
        promised.add_done_callback(lambda _: wake())

    def discard(self, request: Request) -> None:
        self._waiting.pop(request.command.op, None)

    def done(self) -> Iterator[tuple[Request, BaseException | None]]:
        """Requests that wait no more: their grammar is compiled, or here is why it is not."""
        if not self._waiting:
            return
        for op in agree([op for op, (_, promised) in self._waiting.items() if promised.done()]):
            request, promised = self._waiting.pop(op)
            error = promised.exception()
            if error is None:
                request.grammar = promised.result()
            yield request, error
