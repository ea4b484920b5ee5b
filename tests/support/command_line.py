"""Runs `tinkex` lines in this process with small stand-ins for clients, clock and terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tinkex.cli.line.result import CommandResult
from tinkex.cli.main import run
from tinkex.cli.outside.dependencies import Connection, Dependencies

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def done(value: Any = None) -> Future[Any]:
    """A finished future, as the SDK's methods return."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def failed(error: Exception) -> Future[Any]:
    """A future that ended with an error."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


class FakeClients:
    """Hands out the same three stand-ins and keeps what happened to them."""

    def __init__(
        self, rest: Any = None, admin: Any = None, service: Any = None, address: str = "http://x"
    ) -> None:
        self._made = {"rest": rest, "admin": admin, "service": service}
        self._address = address
        self.connections: list[Connection] = []
        self.closed: list[str] = []

    def _hand_out(self, kind: str, connection: Connection) -> Any:
        self.connections.append(connection)
        if isinstance(self._made[kind], Exception):
            raise self._made[kind]
        return self._made[kind]

    def rest(self, connection: Connection) -> Any:
        return self._hand_out("rest", connection)

    def admin(self, connection: Connection) -> Any:
        return self._hand_out("admin", connection)

    def service(self, connection: Connection) -> Any:
        return self._hand_out("service", connection)

    def close(self, client: Any, status: str) -> None:
        self.closed.append(status)

    def address(self, connection: Connection) -> str | None:
        return connection.base_url or self._address

    def account(self, connection: Connection) -> str:
        return f"{self.address(connection)} {connection.api_key}"

    def has_credentials(self, connection: Connection) -> bool:
        return True


@dataclass
class Ran:
    """What a command line did."""

    result: CommandResult
    out: str
    err: str

    @property
    def code(self) -> int:
        return self.result.exit_code


@dataclass
class CommandLine:
    """A `tinkex` to type into."""

    clients: FakeClients = field(default_factory=FakeClients)
    typed: str = ""
    interactive: bool = False
    terminal: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def __call__(self, *argv: str) -> Ran:
        kind: Callable[[str], io.StringIO] = Terminal if self.interactive else io.StringIO
        stdin = kind(self.typed)
        deps = Dependencies(
            clients=self.clients, now=lambda: NOW, stdin=lambda: stdin, **self.extra
        )
        out = Terminal() if self.terminal else io.StringIO()
        err = Terminal() if self.terminal else io.StringIO()
        result = run(list(argv), deps=deps, stdout=out, stderr=err)
        return Ran(result, out.getvalue(), err.getvalue())


def checkpoint(number: int, run: str = "run-1", kind: str = "weights", **changes: Any) -> Any:
    """A checkpoint of a run, made `number` hours before `NOW`."""
    from tinkex.types import Checkpoint

    types = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
    values = {
        "checkpoint_id": f"{kind}/{number:04}",
        "checkpoint_type": types[kind],
        "time": NOW - timedelta(hours=number),
        "tinker_path": f"tinker://{run}/{kind}/{number:04}",
        "size_bytes": 1024 * 1024 * number,
    }
    return Checkpoint(**{**values, **changes})


def training_run(number: int, **changes: Any) -> Any:
    """A training run, last used `number` days before `NOW`."""
    from tinkex.types import TrainingRun

    values = {
        "training_run_id": f"run-{number}",
        "base_model": "org/model-8b",
        "model_owner": "ada",
        "is_lora": True,
        "lora_rank": 32,
        "last_request_time": NOW - timedelta(days=number),
    }
    return TrainingRun(**{**values, **changes})


class FakeRest:
    """A server's records, in memory."""

    def __init__(self, checkpoints: list[Any] = (), runs: list[Any] = ()) -> None:
        self.checkpoints = list(checkpoints)
        self.runs = list(runs)
        self.calls: list[tuple[Any, ...]] = []

    def list_user_checkpoints(self, limit: int = 100, offset: int = 0) -> Future[Any]:
        from tinkex.types import CheckpointsListResponse, Cursor

        self.calls.append(("list_user_checkpoints", limit, offset))
        cursor = Cursor(offset=offset, limit=limit, total_count=len(self.checkpoints))
        page = self.checkpoints[offset : offset + limit]
        return done(CheckpointsListResponse(checkpoints=page, cursor=cursor))

    def list_training_runs(
        self, limit: int = 20, offset: int = 0, access_scope: str = "owned"
    ) -> Future[Any]:
        from tinkex.types import Cursor, TrainingRunsResponse

        self.calls.append(("list_training_runs", limit, offset, access_scope))
        cursor = Cursor(offset=offset, limit=limit, total_count=len(self.runs))
        page = self.runs[offset : offset + limit]
        return done(TrainingRunsResponse(training_runs=page, cursor=cursor))

    def list_checkpoints(self, training_run_id: str) -> Future[Any]:
        from tinkex.types import CheckpointsListResponse

        self.calls.append(("list_checkpoints", training_run_id))
        mine = [c for c in self.checkpoints if f"//{training_run_id}/" in c.tinker_path]
        return done(CheckpointsListResponse(checkpoints=mine))

    def get_training_run(self, training_run_id: str, access_scope: str = "owned") -> Future[Any]:
        self.calls.append(("get_training_run", training_run_id, access_scope))
        found = [run for run in self.runs if run.training_run_id == training_run_id]
        return done(found[0]) if found else failed(status_error(404))

    def publish_checkpoint_from_tinker_path(self, path: str) -> Future[Any]:
        self.calls.append(("publish", path))
        return done()

    def unpublish_checkpoint_from_tinker_path(self, path: str) -> Future[Any]:
        self.calls.append(("unpublish", path))
        return done()

    def set_checkpoint_ttl_from_tinker_path(self, path: str, ttl: int | None) -> Future[Any]:
        self.calls.append(("ttl", path, ttl))
        return done()

    def delete_checkpoint_from_tinker_path(self, path: str) -> Future[Any]:
        self.calls.append(("delete", path))
        before = len(self.checkpoints)
        self.checkpoints = [c for c in self.checkpoints if c.tinker_path != path]
        return done() if len(self.checkpoints) < before else failed(status_error(404))


def status_error(status: int, detail: str = "boom") -> Exception:
    """The SDK's error for an HTTP status."""
    from tinkex.client.error_details import ResponseInfo
    from tinkex.client.errors import status_error as make

    return make(ResponseInfo(status), f'{{"detail": "{detail}"}}'.encode())
