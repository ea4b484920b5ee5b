"""`tinkex home migrate --objects`: interrupted, run again, verified, and no run loses anything."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from support.object_service import BUCKET, ObjectService
from support.served import served
from tinkex.server.hosting.home_moving import CannotMove, move
from tinkex.server.storage.database.postgres import lease
from tinkex.server.storage.home import Home
from tinkex.server.storage.home_rows import WrongRows
from tinkex.server.storage.objects.binding import bound, open_objects
from tinkex.server.storage.objects.migration import Migration, Moved
from tinkex.server.storage.objects.store import BadStore, ObjectStore, StoreDown


def migrate(root: Path, url: str) -> Moved:
    home = Home(root)
    try:
        return Migration(home, url, lambda _: None).run()
    finally:
        home.release()


def test_files_of_a_home_whose_rows_are_in_postgresql_move_too(
    service: ObjectService, tmp_path: Path, database: str
) -> None:
    url = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    home = Home(tmp_path, lease=lease.take(database))
    assert home.lease is not None
    home.lease.open_store().close()
    home.payloads.mkdir()
    (home.weights / "w").mkdir(parents=True)
    (home.weights / "w" / "adapter_model.safetensors").write_bytes(b"kept")
    home.release()
    with pytest.raises(CannotMove, match="in PostgreSQL already: leave --to out"):
        move(tmp_path, url, database, print)
    with pytest.raises(WrongRows, match="say where with TINKEX_DATABASE"):
        move(tmp_path, url, None, print, {})
    (step,) = move(tmp_path, url, None, print, {"TINKEX_DATABASE": database})
    assert step.count == 1
    assert bound(tmp_path) == url
    assert (tmp_path / "cache" / "weights" / "w").is_dir()
    lease.take(database).give_back()


async def test_a_home_moves_in_two_tries_and_goes_on(
    service: ObjectService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = secrets.token_hex(4)
    url = f"s3://{BUCKET}/{prefix}"
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.result((await api.forward(model, 1, length=12_000))["request_id"])
        body = {"model_id": model, "seq_id": 2, "path": "kept"}
        path = (await api.result((await api.post("save_weights", body))["request_id"]))["path"]
        load = {"model_id": model, "seq_id": 3, "path": path, "optimizer": True}
        await api.result((await api.post("load_weights", load))["request_id"])
        await api.result((await api.forward(model, 4, length=12_000))["request_id"])
        before = api.applied(model)
    _fail_after(monkeypatch, 3)
    with pytest.raises(StoreDown):
        migrate(tmp_path, url)
    monkeypatch.undo()
    assert bound(tmp_path) is None, "it still lives from its files"
    async with served(tmp_path) as api:
        await api.result((await api.step(model, 5))["request_id"])
    moved = migrate(tmp_path, url)
    assert moved.moved >= 2
    assert moved.size_bytes > 0
    assert not (tmp_path / "payloads").exists()
    assert not (tmp_path / "weights").exists()
    assert migrate(tmp_path, url).moved == 0
    async with served(tmp_path) as api:
        await api.result((await api.step(model, 6))["request_id"])
        assert api.applied(model)[: len(before)] == before
        assert (await api.core.integrity.check()) == []
    with pytest.raises(BadStore, match="keeps its objects in"):
        migrate(tmp_path, f"{url}-other")


def _fail_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The store takes so many objects and then no more."""
    put, left = ObjectStore.put, iter(range(count))

    def failing(self: ObjectStore, key: str, content: bytes) -> None:
        if next(left, None) is None:
            raise StoreDown("the object store does not answer: cut")
        put(self, key, content)

    monkeypatch.setattr(ObjectStore, "put", failing)


async def test_bytes_that_come_back_changed_stop_it(
    service: ObjectService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        body = {"model_id": model, "seq_id": 1, "path": "kept"}
        await api.result((await api.post("save_weights", body))["request_id"])
    monkeypatch.setattr(ObjectStore, "sha256", lambda *_: "0" * 64)
    with pytest.raises(OSError, match="other bytes"):
        migrate(tmp_path, f"s3://{BUCKET}/{secrets.token_hex(4)}")
    assert bound(tmp_path) is None


@pytest.mark.parametrize("inside", ["", "weights", "cache/weights"])
def test_a_home_is_no_store_of_its_own(tmp_path: Path, inside: str) -> None:
    kept = tmp_path / "weights" / "kept"
    kept.mkdir(parents=True)
    with pytest.raises(BadStore, match="give a folder apart"):
        migrate(tmp_path, f"file://{tmp_path / inside}")
    assert list(kept.parent.iterdir()) == [kept]
    assert bound(tmp_path) is None


@pytest.mark.parametrize("content", ["<html>Welcome to our wireless network</html>", "{}", "[]"])
def test_what_answers_instead_of_a_store_is_one_line(tmp_path: Path, content: str) -> None:
    store, home = tmp_path / "store", tmp_path / "home"
    store.mkdir()
    home.mkdir()
    (store / "home.json").write_text(content)
    with pytest.raises(BadStore, match="what answers is no object store"):
        open_objects(home, f"file://{store}")
    (home / "objects.json").write_text(content)
    with pytest.raises(BadStore, match=r"objects\.json does not say where"):
        open_objects(home, None)
