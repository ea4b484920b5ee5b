"""Custom losses that take as long as a test wants."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from tinkex.engine.losses.custom.evaluator import evaluator
from tinkex.engine.losses.custom.patience import Patience
from tinkex.engine.losses.custom.replies import Reply


class Slow:
    """Evaluates when told to, with the real evaluator. Nobody has patience."""

    def __init__(self) -> None:
        self.patience = Patience()
        self.patience.wait = lambda future: future.done()
        self.held: list[tuple[Future[Reply], tuple[Any, ...]]] = []

    def submit(self, *asked: Any) -> Future[Reply]:
        self.held.append((Future(), asked))
        return self.held[-1][0]

    def get_ready(self) -> None: ...

    def finish(self) -> None:
        held, self.held = self.held, []
        for future, asked in held:
            future.set_result(evaluator().submit(*asked).result())
