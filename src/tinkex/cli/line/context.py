"""What a command has while it runs: format, connection, streams, clients, prompts.

Commands receive this one object and reach the outside world through it only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from tinkex.cli.deadline import Deadline
from tinkex.cli.errors import CliError
from tinkex.cli.line.dispatch import Streams
from tinkex.cli.outside.dependencies import Connection, Dependencies
from tinkex.cli.terminal.progress import Bar

if TYPE_CHECKING:
    from tinkex.cli.transfer.source import Source

T = TypeVar("T")


@dataclass(frozen=True)
class CommandContext:
    """One command's surroundings."""

    format: str  # of the output: table or json
    connection: Connection  # which server, with which key
    verbose: bool  # errors come with their traceback
    streams: Streams  # where output and messages go
    deps: Dependencies  # what opens clients and files; tests give their own
    deadline: Deadline  # of the whole command, from --timeout
    # Opened so far, closed with the command.
    _clients: list[Any] = field(default_factory=list, repr=False)

    @property
    def is_json(self) -> bool:
        return self.format == "json"

    @property
    def stdin(self) -> TextIO:
        return self.deps.stdin()

    @cached_property
    def now(self) -> datetime:
        """The moment ages are counted from, the same for everything the command prints."""
        return self.deps.now()

    @property
    def rest(self) -> Any:
        """The client for runs, checkpoints and sessions."""
        return self._keep(self.deps.clients.rest)

    @property
    def admin(self) -> Any:
        """The client for an organization's records."""
        return self._keep(self.deps.clients.admin)

    @property
    def service(self) -> Any:
        """The client that trains and samples."""
        return self._keep(self.deps.clients.service)

    @property
    def is_embedded(self) -> bool:
        """Whether the command talks to the server in this process."""
        return self.deps.clients.address(self.connection) == "local"

    @property
    def source(self) -> Source:
        """Where files are downloaded from."""
        return self.deps.source(self.is_embedded)

    def _keep(self, make: Callable[[Connection], T]) -> T:
        """One client of a kind per command, closed when the command ends."""
        for kind, client in self._clients:
            if kind == make.__name__:
                return client  # type: ignore[no-any-return]  # made by a `make` of this name
        client = make(self.connection)
        self._clients.append((make.__name__, client))
        return client

    def close(self, status: str) -> None:
        """Ends what the command opened. `status`: success, errored or interrupted."""
        while self._clients:
            _, client = self._clients.pop()
            self.deps.clients.close(client, status)

    def wait(self, future: Any) -> Any:
        """The future's result, within the time the user allows."""
        return future.result(self.deadline.remaining())

    def within(self, work: Callable[[], T]) -> T:
        """The result of a call that blocks, within the time the user allows."""
        return self.deadline.run(work)

    def note(self, text: str) -> None:
        """Says something that is not the result."""
        self.streams.say(text)

    def narrate(self, text: str) -> None:
        """Says what is being done, unless a program is reading."""
        if not self.is_json:
            self.streams.say(text)

    def narrate_start(self) -> None:
        """Says what will take its time where the server of this process has to start."""
        if self.is_embedded:
            self.narrate("Starting the server embedded in tinkex; loading a model takes a while...")

    def bar(self, label: str, total: int | None, unit: str = "items") -> Bar:
        """A progress bar on stderr; invisible in JSON mode and when stderr is no terminal."""
        shown = not self.is_json and self.streams.err.isatty()
        return Bar(self.streams.err if shown else None, label, total, unit)

    def remember(self, kind: str, ids: list[str]) -> None:
        """Keeps ids for completion, when a person may type one of them next."""
        if self.streams.out.isatty() or self.is_embedded:
            from tinkex.cli.line.remembered import remember

            remember(kind, ids, self.connection, self.deps)

    @property
    def can_ask(self) -> bool:
        """Whether a question would reach a person."""
        return not self.is_json and self.stdin.isatty()

    def confirm(self, question: str) -> bool:
        """Asks a yes/no question on stderr; anything but yes is no. End of input aborts."""
        self.streams.err.write(f"{question} [y/N]: ")
        self.streams.err.flush()
        with self.deadline.paused():
            answer = self.stdin.readline()
        if not answer:
            self.note("")
            raise CliError("Aborted.")
        return answer.strip().lower() in ("y", "yes")
