"""The waiting commands of all runs, in order per run, and which of them is next.

Forward passes that are first in their runs' queues are taken together, to be packed into one batch;
any other command is taken alone. The others come first, in rounds: in a round every run is served
what it had waiting when the round began, no more, so that a stream of commands never delays a batch
for ever. Knows nothing of what the commands do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

from tinkex.engine.messages import (
    CreateRun,
    DropRun,
    ForwardBackward,
    LoadRun,
    OptimStep,
    SaveRun,
    ServeRun,
)

SingleCommand: TypeAlias = CreateRun | OptimStep | SaveRun | ServeRun | LoadRun | DropRun
RunCommand: TypeAlias = SingleCommand | ForwardBackward


class RunQueues:
    def __init__(self, is_away: Callable[[RunCommand], bool] = lambda _: False) -> None:
        """`is_away` says whether a command's run has to be brought back to the device first."""
        self._is_away = is_away
        self._waiting: dict[str, deque[RunCommand]] = {}
        self._round: deque[str] | None = None
        self._held: set[str] = set()

    def __bool__(self) -> bool:
        """Whether any waiting command may be taken."""
        return any(run not in self._held for run in self._waiting)

    def add(self, command: RunCommand) -> None:
        self._waiting.setdefault(command.run, deque()).append(command)

    def hold(self, run: str) -> None:
        """Hand out no commands of this run until it is released."""
        self._held.add(run)

    def release(self, run: str) -> None:
        self._held.discard(run)

    def new_round(self) -> None:
        """Start a new round for `take_single` with the commands that wait now."""
        self._round = None

    def first_away(self) -> str | None:
        """The first run that has to be brought back for its next command."""
        heads = ((run, waiting[0]) for run, waiting in self._waiting.items())
        away = (run for run, head in heads if run not in self._held and self._is_away(head))
        return next(away, None)

    def take_head(self, run: str) -> RunCommand:
        """The next command of a run that has any."""
        head = self._waiting[run][0]
        self._drop_head(run)
        return head

    def take_single(self, busy: Container[str]) -> SingleCommand | None:
        """The next command of this round that is not a forward pass, of a run that is not
        `busy`."""
        if self._round is None:
            self._round = deque(run for run, waiting in self._waiting.items() for _ in waiting)
        while self._round:
            run = self._round.popleft()
            waiting = self._waiting.get(run)
            if waiting and run not in busy and run not in self._held:
                head = waiting[0]
                if not isinstance(head, ForwardBackward) and not self._is_away(head):
                    self._drop_head(run)
                    return head
        return None

    def take_forward(
        self,
        tokens: int,
        busy: Container[str] = (),
        admits: Callable[[Sequence[str]], bool] = lambda _: True,
    ) -> list[ForwardBackward]:
        """The forward passes that are next in runs that are not `busy`, up to so many tokens but at
        least one, and only of runs that `admits` says can be taken together."""
        taken: list[ForwardBackward] = []
        for run, waiting in list(self._waiting.items()):
            head, free = waiting[0], run not in self._held and run not in busy
            if free and isinstance(head, ForwardBackward) and not self._is_away(head):
                size = sum(len(datum.tokens) for datum in head.data)
                together = [*(command.run for command in taken), run]
                if (not taken or size <= tokens) and admits(together):
                    tokens -= size
                    taken.append(head)
                    self._drop_head(run)
        return taken

    def _drop_head(self, run: str) -> None:
        waiting = self._waiting[run]
        waiting.popleft()
        if not waiting:
            del self._waiting[run]
