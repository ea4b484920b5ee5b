"""What was acknowledged is on disk; what could not be written was never acknowledged."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.served import forward_body, served
from tinkex.server.settings import Limits


def _full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


async def test_a_full_disk_refuses_the_operation_and_room_lets_it_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        put = api.core.blobs.put
        monkeypatch.setattr(api.core.blobs, "put", _full)
        refused = await api.forward(model, 1, length=30_000, expect=503)
        assert "No space" in refused["detail"]
        monkeypatch.setattr(api.core.blobs, "put", put)
        await api.forward(model, 1, first=9, length=30_000)
        await api.result(f"{model}:1")
        assert api.applied(model) == ["forward:9"]


async def test_what_is_not_accepted_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        first = await api.forward(model, 1, length=30_000)
        await api.result(first["request_id"])
        kept: list[str] = []
        gone: list[str] = []
        reserve, delete = api.core.blobs.reserve, api.core.blobs.delete
        monkeypatch.setattr(
            api.core.blobs, "reserve", lambda size: kept.append(reserve(size)) or kept[-1]
        )
        monkeypatch.setattr(
            api.core.blobs, "delete", lambda name: (gone.append(name), delete(name))
        )
        await api.forward(model, 1, length=30_000)
        await api.forward(model, 1, first=7, length=30_000, expect=422)
        await api.forward("nobody:train:0", 2, length=30_000, expect=404)
        await api.forward(model, 2, content=bytes(100_000), expect=422)
        assert len(kept) == 4
        assert gone == kept
        await api.forward(model, 2, length=30_000)
        assert len(gone) == 4


async def test_a_full_disk_still_knows_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        first = await api.forward(model, 1, length=30_000)
        monkeypatch.setattr(api.core.blobs, "put", _full)
        assert await api.forward(model, 1, length=30_000) == first


async def test_no_row_names_a_body_before_that_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        put, named = api.core.blobs.put, []

        def look(name: str, data: bytes, meanwhile: Any = None) -> None:
            put(name, data, meanwhile)
            count = "SELECT COUNT(*) FROM operations WHERE payload_blob IS NOT NULL"
            with closing(sqlite3.connect(tmp_path / "tinkex.db")) as db:
                named.append(db.execute(count).fetchone()[0])

        monkeypatch.setattr(api.core.blobs, "put", look)
        api.engine.gate = asyncio.Event()
        await api.forward(model, 1, length=30_000)
        assert named == [0]
        api.engine.gate.set()


async def test_a_result_that_cannot_be_written_is_kept_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinkex.server.training.results._RETRY_S", 0.01)
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        api.engine.gate = asyncio.Event()
        await api.forward(model, 1, length=30_000)
        put, tries = api.core.blobs.put, []

        def twice(name: str, data: bytes) -> None:
            tries.append(name)
            if len(tries) < 3:
                _full()
            put(name, data)

        monkeypatch.setattr(api.core.blobs, "put", twice)
        api.engine.gate.set()
        assert len(await api.result(f"{model}:1")) > 100_000
        assert len(tries) == 3


async def test_a_body_that_never_reached_the_disk_is_forgotten_at_the_next_start(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        api.engine.gate = asyncio.Event()
        await api.forward(model, 1, first=1, length=30_000)
        row = api.core.runs.find(model)
        assert row is not None
        for segment in (tmp_path / "payloads").iterdir():
            segment.write_bytes(segment.read_bytes()[:-9])
    async with served(tmp_path) as api:
        await api.forward(model, 1, first=5, length=30_000)
        await api.result(f"{model}:1")
        assert api.applied(model) == ["forward:5"]


async def test_a_result_that_never_reached_the_disk_is_computed_again(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.forward(model, 1, first=1, length=30_000)
        first = await api.result(f"{model}:1")
        await api.step(model, 2)
        await api.result(f"{model}:2")
    with closing(sqlite3.connect(tmp_path / "tinkex.db")) as db:
        (blob,) = db.execute("SELECT result_blob FROM operations WHERE seq_id = 1").fetchone()
    segment, offset, _ = blob.split("-")
    with (tmp_path / "payloads" / f"{segment}.segment").open("r+b") as file:
        file.seek(int(offset))
        file.write(b"torn")
    async with served(tmp_path) as api:
        assert await api.result(f"{model}:1") == first
        assert api.applied(model) == ["forward:1", "step:0.1"]


async def test_the_same_request_with_its_maps_in_another_order_is_the_same(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        body = forward_body(model, 1)
        first = await api.forward(model, 1, content=body)
        start = body.index(b"target_tokens") - 4
        swapped = _swap_inputs(body, start)
        assert swapped != body
        assert await api.forward(model, 1, content=swapped) == first
        await api.result(first["request_id"])
        assert await api.forward(model, 1, content=swapped) == first
        assert api.applied(model) == ["forward:1"]


def _swap_inputs(body: bytes, start: int) -> bytes:
    """Exchange the two entries of the datum's map of inputs."""
    first = body[start : start + 2 + body[start + 1]]
    rest = start + len(first)
    second = body[rest : rest + 2 + body[rest + 1]]
    return body[:start] + second + first + body[rest + len(second) :]


async def test_quotas_put_off_what_would_fill_the_disk(tmp_path: Path) -> None:
    limits = Limits(pending_operations_per_run=3, runs_per_tenant=1)
    async with served(tmp_path, limits=limits) as api:
        session = await api.session()
        model = await api.model(session)
        api.engine.gate = asyncio.Event()
        for seq in (1, 2, 3):
            await api.forward(model, seq)
        refused = await api.forward(model, 4, expect=429)
        assert "3 operations" in refused["detail"]
        body = {"session_id": session, "model_seq_id": 1, "base_model": "fake/model"}
        await api.post("create_model", {**body, "lora_config": {"rank": 4}}, expect=429)
        api.engine.gate.set()
        await api.result(f"{model}:3")
        await api.forward(model, 4)


async def test_a_created_model_is_created_once(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        body = {"session_id": await api.session(), "model_seq_id": 0, "base_model": "fake/model"}
        body["lora_config"] = {"rank": 4}
        answers = [await api.post("create_model", body) for _ in range(3)]
        assert len({answer["request_id"] for answer in answers}) == 1
        other = {**body, "lora_config": {"rank": 5}}
        await api.post("create_model", other, expect=422)
        assert len(list(api.core.runs)) == 1
