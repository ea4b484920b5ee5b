"""Guarantee 12: a full disk at any write is told, loses nothing acknowledged, and passes."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.served import Api, forward_body, served
from tinkex.server.settings import Scheduling
from tinkex.server.storage import blobs as segments
from tinkex.server.storage import folders
from tinkex.server.storage.database import commit, writer
from tinkex.server.storage.database.transactions import DatabaseUnavailable
from tinkex.server.training import results

LARGE = 30_000
"""Tokens whose body is kept as a blob beside the database."""
LONG = bool(os.environ.get("TINKEX_LONG"))


class Disk:
    """Counts every durable write and lets those in `full` fail as a full disk does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full: range) -> None:
        self.writes, self._full = 0, full
        self.failed = 0
        self.running = False
        pwrite, sync = segments._write, folders._sync

        def write(*arguments: Any) -> None:
            self._refuse(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            pwrite(*arguments)

        def synced(path: Path) -> None:
            self._refuse(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            sync(path)

        def committed(connection: Any, jobs: Any) -> None:
            try:
                self._refuse(DatabaseUnavailable("database or disk is full"))
            except DatabaseUnavailable as error:
                for job in jobs:
                    job.error = error
            else:
                commit.commit_batch(connection, jobs)

        monkeypatch.setattr(segments, "_write", write)
        monkeypatch.setattr(folders, "_sync", synced)
        monkeypatch.setattr(writer, "commit_batch", committed)
        monkeypatch.setattr(results, "_RETRY_S", 0.005)

    def _refuse(self, error: Exception) -> None:
        if not self.running:
            return
        self.writes += 1
        if self.writes - 1 in self._full:
            self.failed += 1
            raise error


async def _until_room(ask: Callable[[], Any]) -> Any:
    """Repeat as a client does: 503 means later, and says why."""
    while True:
        response = await ask()
        if response.status_code == 200:
            return response.json()
        assert response.status_code == 503, response.text
        assert "disk" in response.text
        assert "retry-after" in response.headers
        await asyncio.sleep(0.002)


async def _session(api: Api) -> str:
    made = await _until_room(
        lambda: api.send("POST", "create_session", json={"tags": [], "user_metadata": {}})
    )
    return str(made["session_id"])


async def _scenario(home: Path, disk: Disk) -> list[str]:
    """Steps, a snapshot and a checkpoint; what the engine applied in the end."""
    async with served(home, scheduling=Scheduling(snapshot_steps=2)) as api:
        disk.running = True
        session = await _session(api)
        body = {
            "session_id": session,
            "model_seq_id": 0,
            "base_model": "fake/model",
            "lora_config": {"rank": 8, "seed": 1},
        }
        made = await _until_room(lambda: api.send("POST", "create_model", json=body))
        model = made["model_id"]
        promised = [made["request_id"]]
        for number in range(4):
            seq = 2 * number + 1
            content = forward_body(model, seq, first=number + 5, length=LARGE if number else 3)
            headers = {"content-type": "application/x-protobuf"}
            promised.append(await _promise(api, "forward_backward", content, headers))
            step = {"model_id": model, "seq_id": seq + 1, "adam_params": {"learning_rate": 0.1}}
            promised.append(await _promise(api, "optim_step", step, {}))
        save = {"model_id": model, "seq_id": 9, "path": "kept"}
        promised.append(await _promise(api, "save_weights", save, {}))
        for request_id in promised[:-1]:
            result = await api.result(request_id)
            assert isinstance(result, bytes) or "error" not in result, result
        saved = await api.result(promised[-1])
        assert "path" in saved or "No space left" in saved["error"], saved
        api.engine.current.die()
        last = {"model_id": model, "seq_id": 10, "adam_params": {"learning_rate": 0.1}}
        await api.result(await _promise(api, "optim_step", last, {}))
        disk.running = False
        return api.applied(model)


async def _promise(api: Api, path: str, body: Any, headers: dict[str, str]) -> str:
    sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = await _until_room(lambda: api.send("POST", path, headers=dict(headers), **sent))
    return str(answer["request_id"])


async def test_guarantee_12_disk_full_at_every_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each durable write of a run in turn (`TINKEX_LONG=1`; else for every fourth), that write
    and the next two fail for want of room, in the long form also that write alone:
    the request is refused with the reason, whatever was acknowledged happens exactly once, and
    the service goes on by itself."""
    with monkeypatch.context() as patch:
        calm = Disk(patch, range(0))
        expected = await _scenario(tmp_path / "calm", calm)
    assert calm.writes > 30
    reached = 0
    places = [(first, 3) for first in range(0, calm.writes, 4)]
    if LONG:
        places = [(first, length) for first in range(calm.writes) for length in (1, 3)]
    for first, length in places:
        with monkeypatch.context() as patch:
            disk = Disk(patch, range(first, first + length))
            home = tmp_path / f"{first}-{length}"
            assert await _scenario(home, disk) == expected, (first, length)
            reached += disk.failed > 0
    # Commits that fall together are one write, so a run may end before its last writes' turn.
    assert reached >= len(places) - (8 if LONG else 4)
