"""A server whose bytes are in an object store: accepted, restored, loaded, deleted, while it fails.

The engine is a fake: what is tried here is where bytes are at which moment.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.jumping_clock import JumpingClock
from support.object_service import BUCKET, ObjectService
from support.served import Api, served
from tinkex.server.storage.objects import store as store_module

LONG = 20_000
"""Tokens of a body, and of a result, that are too large for a row."""


@pytest.fixture
def prefix() -> str:
    return secrets.token_hex(4)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_RETRY", {"max_retries": 0})
    monkeypatch.setattr(store_module, "_PAUSE_S", 0.05)


async def save(api: Api, model: str, seq: int, name: str, **fields: Any) -> str:
    body = {"model_id": model, "seq_id": seq, "path": name, **fields}
    accepted = await api.post("save_weights", body)
    return str((await api.result(accepted["request_id"]))["path"])


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


async def test_what_was_accepted_is_in_the_store_and_a_new_host_goes_on_with_it(
    service: ObjectService, prefix: str, tmp_path: Path
) -> None:
    url = f"s3://{BUCKET}/{prefix}"
    async with served(tmp_path / "home", objects=url) as api:
        model = await api.model(await api.session())
        await api.result((await api.forward(model, 1, length=LONG))["request_id"])
        assert len(service.keys(f"{prefix}/payloads")) >= 1, "the body is there"
        await api.result((await api.step(model, 2))["request_id"])
        path = await save(api, model, 3, "kept")
        before = api.applied(model)
    assert len(service.keys(f"{prefix}/weights")) >= 2
    shutil.rmtree(tmp_path / "home" / "cache")
    async with served(tmp_path / "home") as api:
        await api.result((await api.step(model, 4))["request_id"])
        assert api.applied(model)[: len(before)] == before
        body = {"model_id": model, "seq_id": 5, "path": path, "optimizer": True}
        loaded = await api.post("load_weights", body)
        assert (await api.result(loaded["request_id"]))["path"] == path


async def test_while_the_store_is_away_work_waits_with_the_reason_and_goes_on_after(
    service: ObjectService, prefix: str, tmp_path: Path
) -> None:
    async with served(tmp_path, objects=f"s3://{BUCKET}/{prefix}") as api:
        model = await api.model(await api.session())
        service.proxy.cut()
        refused = await api.forward(model, 1, length=LONG, expect=503)
        assert "the object store does not answer" in refused["detail"]
        await api.result((await api.forward(model, 1))["request_id"])  # a small one needs no store
        body = {"model_id": model, "seq_id": 2, "path": "late"}
        saving = (await api.post("save_weights", body))["request_id"]
        await until(
            lambda: api.core.storage.remote is not None and bool(api.core.storage.remote.trouble)
        )
        waits = await api.poll(saving)
        assert waits.status_code == 408
        assert "the object store does not answer" in waits.text
        service.proxy.refusing = False
        assert (await api.result(saving))["path"].endswith("/weights/late")
        await api.result((await api.forward(model, 3, length=LONG))["request_id"])


async def test_a_slow_store_only_makes_it_slow(
    service: ObjectService, prefix: str, tmp_path: Path
) -> None:
    async with served(tmp_path, objects=f"s3://{BUCKET}/{prefix}") as api:
        model = await api.model(await api.session())
        service.proxy.delay_s = 0.05
        await api.result((await api.forward(model, 1, length=LONG))["request_id"])
        await save(api, model, 2, "slow")


async def test_a_deleted_or_expired_checkpoint_takes_its_objects_with_it(
    service: ObjectService, prefix: str, tmp_path: Path
) -> None:
    url = f"s3://{BUCKET}/{prefix}"
    async with served(tmp_path, objects=url) as api:
        model = await api.model(await api.session())
        await save(api, model, 1, "kept")
        await save(api, model, 2, "deleted")
        await save(api, model, 3, "expired", ttl_seconds=3600)
        path = f"training_runs/{model}/checkpoints/weights/deleted"
        assert (await api.send("DELETE", path)).status_code == 200
        api.core.checkpoints._clock = clock = JumpingClock()
        clock.wall = 4000.0
        assert await api.core.checkpoints.expire() == 1
        await api.core.unnamed.delete_orphans()
        assert len(api.core.weights.names()) == 3, "young ones may be about to be named"
        await api.core.unnamed.delete_orphans(all_ages=True)
        assert len(api.core.weights.names()) == 1
    kept = {key.split("/")[0] for key in service.keys(f"{prefix}/weights")}
    assert len(kept) == 1


async def test_a_loaded_checkpoint_stays_until_a_snapshot_covers_the_load(
    service: ObjectService, prefix: str, tmp_path: Path
) -> None:
    async with served(tmp_path, objects=f"s3://{BUCKET}/{prefix}") as api:
        model = await api.model(await api.session())
        path = await save(api, model, 1, "source")
        body = {"model_id": model, "seq_id": 2, "path": path, "optimizer": True}
        await api.result((await api.post("load_weights", body))["request_id"])
        pinned = api.core.storage.pins.folders()
        await api.send("DELETE", f"training_runs/{model}/checkpoints/weights/source")
        await api.core.unnamed.delete_orphans(all_ages=True)
        assert pinned <= api.core.weights.names() or not api.core.storage.pins.folders()


async def test_an_archive_comes_straight_from_the_store(
    service: ObjectService, prefix: str, tmp_path: Path
) -> None:
    async with served(tmp_path, objects=f"s3://{BUCKET}/{prefix}") as api:
        model = await api.model(await api.session())
        await save(api, model, 1, "taken")
        path = f"training_runs/{model}/checkpoints/weights/taken/archive"
        url = (await api.send("GET", path)).json()["url"]
        assert url.startswith(f"http://127.0.0.1:{service.proxy.port}/{BUCKET}/{prefix}/weights/")
        again = (await api.send("GET", path)).json()["url"]
        assert again.partition("?")[0] == url.partition("?")[0], "packed once"


async def test_of_a_store_that_lies_nothing_is_kept_and_who_asks_hears_what_is_wrong(
    service: ObjectService, prefix: str, tmp_path: Path
) -> None:
    async with served(tmp_path, objects=f"s3://{BUCKET}/{prefix}") as api:
        model = await api.model(await api.session())
        await save(api, model, 1, "taken")
        (folder,) = (tmp_path / "cache" / "weights").iterdir()
        shutil.rmtree(folder)
        there = service.folder / BUCKET / prefix / "weights" / folder.name
        (damaged,) = there.glob("*/adapter_model.safetensors")
        right = damaged.read_bytes()
        damaged.write_bytes(b"<html>" + right[6:])
        path = f"training_runs/{model}/checkpoints/weights/taken/archive"
        answer = await api.send("GET", path)
        assert answer.status_code == 422
        assert "adapter_model.safetensors is not the one that was saved" in answer.text
        assert not folder.exists()
        damaged.write_bytes(right)
        assert (await api.send("GET", path)).status_code == 200


async def test_a_store_that_does_not_answer_keeps_only_those_who_ask_it(
    service: ObjectService, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often one tenant asks for what is there: a thread waits for each answer."""
    async with served(tmp_path, objects=f"s3://{BUCKET}/{prefix}") as api:
        model = await api.model(await api.session())
        await save(api, model, 1, "there")
        shutil.rmtree(tmp_path / "cache" / "weights")
        (tmp_path / "cache" / "weights").mkdir()
        asked, may_go_on = threading.Event(), threading.Event()
        remote = api.core.storage.remote
        assert remote is not None
        right = remote.objects.get

        def late(key: str) -> bytes:
            asked.set()
            may_go_on.wait()
            return right(key)

        monkeypatch.setattr(remote.objects, "get", late)
        path = f"training_runs/{model}/checkpoints/weights/there/adapter_urls"
        asking = [asyncio.create_task(api.send("GET", path)) for _ in range(100)]
        try:
            await asyncio.to_thread(asked.wait)
            other = api.as_tenant("tml-other")
            # Long enough to be read in a thread; it says too much, and hears so.
            body = {"user_metadata": {"k": "x" * 40_000}}
            await other.post("create_session", body, expect=422)
            run = await other.model(await other.session())
            await other.result((await other.step(run, 1))["request_id"])
        finally:
            may_go_on.set()
        assert {(await each).status_code for each in asking} == {200}
