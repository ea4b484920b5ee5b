"""What the server needs from an engine's process: start, take commands, give events, stop.

The server never imports an engine; it gets a `Launch`. The real one is found by name in
`child_process`; tests and simulations bring their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tinkex.engine.messages import Command, Event, Ready
from tinkex.server.settings import ModelSpec

Tell: TypeAlias = Callable[[str], None]
"""Is told, in words for people, what a start is waiting for."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine of a pool: the model it serves, its number among that model's engines, and its
    share of the machine. Without `threads` it uses all; of the host's memory it plans with its
    share."""

    model: ModelSpec
    index: int = 0
    device: str = "auto"
    threads: int | None = None
    memory_share: float = 1.0

    @property
    def name(self) -> str:
        """What operators call it, and what residences name."""
        return f"{self.model.name}#{self.index}"


class WorkerDied(Exception):
    """The process is gone; the text says how. `said_so` means that it gave the reason itself and
    was not just lost."""

    def __init__(self, text: str, said_so: bool = False) -> None:
        super().__init__(text)
        self.said_so = said_so


class Worker(Protocol):
    """One engine process for one base model, for one life: to restart, make a new one."""

    async def start(self, tell: Tell) -> Ready:
        """Start the process and wait until its model is loaded; `tell` hears what it waits for.
        Raises `WorkerDied`."""
        ...

    async def send(self, command: Command) -> None:
        """Hand over a command, in order. Raises `WorkerDied`."""
        ...

    async def receive(self) -> Sequence[Event]:
        """The next events, at least one. Raises `WorkerDied` when there will be no more."""
        ...

    async def stop(self) -> None:
        """End the process and release its resources. Never raises."""
        ...


Launch: TypeAlias = Callable[[EngineSpec], Worker]
