"""Ids that completion offers: asked of the server at most once a minute, kept in a small file.

Only ids are kept, never keys; the file's name is a digest of the server and the account.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from typing import Any

from tinkex.cli.outside.dependencies import Connection, Dependencies
from tinkex.cli.whole_file import write_whole

FRESH_SECONDS = 60.0
USABLE_SECONDS = 600.0
ASK_SECONDS = 3.0
_MOST_IDS = 200

# What a command calls its argument or option -> what it takes.
KINDS = {
    "run_id": "runs",
    "checkpoint_path": "checkpoints",
    "checkpoint_paths": "checkpoints",
    "model_path": "checkpoints",
    "base_model": "models",
    "model": "models",
}


def remembered_ids(kind: str, connection: Connection, deps: Dependencies) -> list[str]:
    """The ids of a kind, from the file while it is fresh, otherwise from the server.

    The embedded server is not started for this: its ids come from the file alone.
    """
    known, age = _read(kind, connection, deps)
    if age < FRESH_SECONDS:
        return known
    if deps.clients.address(connection) != "local":
        try:
            known = _ask(kind, connection, deps)
            remember(kind, known, connection, deps)
            return known
        except Exception:
            pass  # an unreachable server must not break typing
    return known if age < USABLE_SECONDS else []


def remember(kind: str, ids: list[str], connection: Connection, deps: Dependencies) -> None:
    """Keeps ids that a command has just seen; a full disk or a missing home is no failure."""
    value = {"at": deps.now().timestamp(), "ids": ids[:_MOST_IDS]}
    with contextlib.suppress(OSError):
        write_whole(_path(kind, connection, deps), json.dumps(value))


def _ask(kind: str, connection: Connection, deps: Dependencies) -> list[str]:
    questions: dict[str, Callable[[], list[str]]] = {
        "runs": lambda: _runs(connection, deps),
        "checkpoints": lambda: _checkpoints(connection, deps),
        "models": lambda: _models(connection, deps),
    }
    return questions[kind]()


def _runs(connection: Connection, deps: Dependencies) -> list[str]:
    with _closing(deps.clients.rest, connection, deps) as rest:
        page = rest.list_training_runs(limit=100).result(ASK_SECONDS)
        return [run.training_run_id for run in page.training_runs]


def _checkpoints(connection: Connection, deps: Dependencies) -> list[str]:
    with _closing(deps.clients.rest, connection, deps) as rest:
        page = rest.list_user_checkpoints(limit=_MOST_IDS).result(ASK_SECONDS)
        return [item.tinker_path for item in page.checkpoints]


def _models(connection: Connection, deps: Dependencies) -> list[str]:
    with _closing(deps.clients.service, connection, deps) as service:
        models = service.get_server_capabilities().supported_models
        return [model.model_name for model in models if model.model_name]


class _closing:
    """A client that is closed when the question is answered."""

    def __init__(
        self, make: Callable[[Connection], Any], connection: Connection, deps: Dependencies
    ) -> None:
        self._client = make(connection)
        self._deps = deps

    def __enter__(self) -> Any:
        return self._client

    def __exit__(self, *exception: object) -> None:
        self._deps.clients.close(self._client, "success")


def _read(kind: str, connection: Connection, deps: Dependencies) -> tuple[list[str], float]:
    try:
        value = json.loads(_path(kind, connection, deps).read_text(encoding="utf-8"))
        return list(value["ids"]), deps.now().timestamp() - float(value["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return [], float("inf")


def _path(kind: str, connection: Connection, deps: Dependencies) -> Any:
    whose = deps.clients.account(connection)
    digest = hashlib.sha256(whose.encode()).hexdigest()[:16]
    return deps.cache_folder() / "completion" / f"{digest}-{kind}.json"
