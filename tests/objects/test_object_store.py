"""A real S3 service behind the server's storage: folders, blobs, pins, the cache, and trouble."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.object_service import BUCKET, ObjectService
from tinkex.server.storage import manifest
from tinkex.server.storage.objects import store as store_module
from tinkex.server.storage.objects.binding import bound, open_objects
from tinkex.server.storage.objects.blobs import ObjectBlobs
from tinkex.server.storage.objects.cache import Cache
from tinkex.server.storage.objects.folders import ObjectFolders
from tinkex.server.storage.objects.pins import ObjectPins
from tinkex.server.storage.objects.store import (
    PART_BYTES,
    BadStore,
    NoSuchObject,
    ObjectStore,
    StoreDown,
)

ROOM = 1 << 30


@pytest.fixture
def prefix() -> str:
    return secrets.token_hex(4)


@pytest.fixture
def store(service: ObjectService, prefix: str) -> ObjectStore:
    return ObjectStore(f"s3://{BUCKET}/{prefix}")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up on a store that does not answer almost at once."""
    monkeypatch.setattr(store_module, "_RETRY", {"max_retries": 0})
    monkeypatch.setattr(store_module, "_PAUSE_S", 0.05)


def folders(root: Path, store: ObjectStore, room: int = ROOM) -> ObjectFolders:
    made = ObjectFolders(root, store, "weights", Cache(room))
    made.open()
    return made


def seal(made: ObjectFolders, content: bytes, name: str | None = None) -> str:
    draft = made.begin(name)
    (draft / "adapter_model.safetensors").write_bytes(content)
    manifest.write(draft)
    return made.seal(draft)


async def test_a_folder_comes_back_byte_for_byte_where_the_cache_is_gone(
    store: ObjectStore, tmp_path: Path
) -> None:
    content = secrets.token_bytes(PART_BYTES + 12345)
    name = seal(folders(tmp_path / "one", store), content)
    other = folders(tmp_path / "two", store)
    assert other.has(name)
    found = await other.here(name)
    manifest.verify(found, await other.digest(name))
    assert (found / "adapter_model.safetensors").read_bytes() == content
    assert other.size(name) >= len(content)


async def test_a_large_object_comes_in_parts_from_a_service_whose_parts_obstore_refuses(
    service: ObjectService, store: ObjectStore, tmp_path: Path
) -> None:
    content = secrets.token_bytes(3 * PART_BYTES)
    store.put("large", content)
    before = service.proxy.connections
    assert (
        store.fetch("large", len(content), tmp_path / "one") == hashlib.sha256(content).hexdigest()
    )
    assert service.proxy.connections - before >= 3
    assert (tmp_path / "one").read_bytes() == content
    assert store.trouble is None
    with pytest.raises(NoSuchObject):
        store.fetch("gone", len(content), tmp_path / "two")


async def test_a_folder_can_be_the_store_and_signs_nothing(tmp_path: Path) -> None:
    store = ObjectStore(f"file://{tmp_path}/shared")
    name = seal(folders(tmp_path / "one", store), bytes(PART_BYTES + 1))
    other = folders(tmp_path / "two", store)
    ref = await other.reference(name)
    assert manifest.verify(Path(ref.path), ref.digest).size_bytes == PART_BYTES + 1
    assert ref.files == ()
    assert await other.archive_link(name, lambda _: [], 60.0) is None
    other.delete(name)
    assert store.found("weights/") == []


async def test_bytes_the_store_changed_are_refused(
    service: ObjectService, prefix: str, store: ObjectStore, tmp_path: Path
) -> None:
    name = seal(folders(tmp_path / "one", store), b"as saved")
    (key,) = [
        key for key in service.keys(f"{prefix}/weights/{name}") if key.endswith(".safetensors")
    ]
    (service.folder / BUCKET / prefix / "weights" / name / key).write_bytes(b"as found")
    with pytest.raises(manifest.CorruptCheckpoint, match="not the one that was saved"):
        await folders(tmp_path / "two", store).here(name)


async def test_a_reference_has_links_that_need_no_key(store: ObjectStore, tmp_path: Path) -> None:
    made = folders(tmp_path, store)
    ref = await made.reference(seal(made, b"numbers"))
    (link,) = ref.files
    with urllib.request.urlopen(link.url) as answer:
        assert answer.read() == b"numbers"
    assert link.size == 7
    assert len(ref.digest) == 64


def test_a_folder_without_its_manifest_was_never_sealed(
    service: ObjectService, prefix: str, store: ObjectStore, tmp_path: Path
) -> None:
    name = seal(folders(tmp_path / "one", store), b"x")
    (stored,) = service.keys(f"{prefix}/weights/{name}")[:1]
    store.put("weights/half/digest/adapter_model.safetensors", b"x")
    again = folders(tmp_path / "two", store)
    assert again.names() == {name}
    assert service.keys(f"{prefix}/weights/half") == []
    assert stored


def test_an_operation_repeated_keeps_what_its_first_try_sealed(
    service: ObjectService, prefix: str, store: ObjectStore, tmp_path: Path
) -> None:
    made = folders(tmp_path, store)
    seal(made, b"first", "op")
    before = service.keys(f"{prefix}/weights/op")
    seal(made, b"other", "op")
    assert service.keys(f"{prefix}/weights/op") == before


def test_deleting_a_folder_deletes_its_objects(
    service: ObjectService, prefix: str, store: ObjectStore, tmp_path: Path
) -> None:
    made = folders(tmp_path, store)
    name = seal(made, b"x")
    made.delete(name)
    assert service.keys(f"{prefix}/weights") == []
    assert not made.has(name)
    assert not made.path(name).exists()


async def test_the_cache_lets_go_of_the_least_recently_used_and_never_of_what_is_in_use(
    store: ObjectStore, tmp_path: Path
) -> None:
    made = folders(tmp_path, store, room=2500)
    one, two = seal(made, bytes(900), "one"), seal(made, bytes(900), "two")
    await made.here(one)
    seal(made, bytes(900), "three")
    assert made.path(one).exists()
    assert not made.path(two).exists()
    with made.using(one), made.using("three"):
        await made.here(two)
        assert made.path(one).exists()
        assert made.path("three").exists()
    assert (await made.here(two)).is_dir()


async def test_the_cache_gives_way_while_the_disk_is_short_of_room_whatever_its_own_limit(
    store: ObjectStore, tmp_path: Path
) -> None:
    """Or copies of what is in the store would keep a server from writing what is not."""
    root = tmp_path / "w"
    cache = Cache(ROOM, lambda: len(list(root.iterdir())) <= 2)
    made = ObjectFolders(root, store, "weights", cache)
    names = [seal(made, b"x", name) for name in ("one", "two", "three")]
    assert [made.is_here(name) for name in names] == [False, True, True]
    with made.using("two"):
        seal(made, b"x", "four")
        assert [made.is_here(name) for name in (*names, "four")] == [False, True, False, True]
    assert (await made.here("one")).is_dir()


async def test_a_pinned_folder_outlives_its_checkpoint_until_it_is_dropped(
    store: ObjectStore, tmp_path: Path
) -> None:
    cache = Cache(ROOM)
    made = ObjectFolders(tmp_path / "w", store, "weights", cache)
    pins = ObjectPins(store, "pins", made, cache)
    name = seal(made, b"x")
    await pins.pin("run:3", name, made.path(name))
    again = ObjectPins(store, "pins", made, cache)
    again.open()
    assert again.folders() == {name}
    found = await again.find("run:3")
    assert found is not None
    assert found.path == str(made.path(name))
    again.keep_only([])
    assert await again.find("run:3") is None
    assert store.found("pins/") == []


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"folder": 3}', b'{"folder": "../x"}'])
def test_a_damaged_pin_is_named_and_left_as_it_is(
    damage: bytes, store: ObjectStore, tmp_path: Path
) -> None:
    cache = Cache(ROOM)
    made = ObjectFolders(tmp_path / "w", store, "weights", cache)
    store.put("pins/run-3", damage)
    with pytest.raises(BadStore, match=r"/pins/run-3 is damaged: .* Restore it"):
        ObjectPins(store, "pins", made, cache).open()
    assert store.get("pins/run-3") == damage


def test_a_server_with_a_damaged_pin_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "shared" / "pins").mkdir(parents=True)
    (tmp_path / "shared" / "pins" / "run-3").write_text("{")
    words = ["serve", "--model", "tinkex/tiny-llama", "--device", "cpu", "--port", "0", "--quiet"]
    places = ["--home", str(tmp_path / "home"), "--objects", f"file://{tmp_path}/shared"]
    command = [sys.executable, "-m", "tinkex", *words, *places]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    (said,) = ended.stderr.splitlines()
    assert said.startswith(f"tinkex serve: file://{tmp_path}/shared/pins/run-3 is damaged: ")


def test_blobs_are_there_when_put_returns_and_orphans_are_swept(store: ObjectStore) -> None:
    blobs = ObjectBlobs(store, "payloads")
    names = [blobs.reserve(3) for _ in range(3)]
    looked: list[str] = []
    for name in names:
        blobs.put(name, b"abc", lambda: looked.append("meanwhile"))
    assert looked == ["meanwhile"] * 3
    assert blobs.get(names[0]) == b"abc"
    assert blobs.missing([*names, "never"]) == {"never"}
    blobs.keep_only(names[:2])
    assert blobs.missing(names) == {names[2]}
    blobs.delete(names[0])
    blobs.delete_due()
    assert blobs.missing(names) == {names[0], names[2]}


@pytest.mark.usefixtures("impatient")
async def test_while_the_store_is_down_it_says_so_and_nothing_is_lost(
    service: ObjectService, prefix: str, tmp_path: Path
) -> None:
    store = ObjectStore(f"s3://{BUCKET}/{prefix}")
    made = folders(tmp_path / "one", store)
    name = seal(made, b"kept")
    service.proxy.cut()
    draft = made.begin()
    (draft / "file").write_bytes(b"y")
    manifest.write(draft)
    with pytest.raises(StoreDown, match="the object store does not answer: "):
        made.seal(draft)
    address = f"http://127.0.0.1:{service.proxy.port}"
    assert str(store.trouble).endswith(f": error sending request (PUT to {address})")
    made.delete(name)
    waiting = asyncio.create_task(
        store_module.patiently(lambda: asyncio.to_thread(made.seal, draft))
    )
    await asyncio.sleep(0)
    service.proxy.refusing = False
    sealed = await waiting
    assert store.trouble is None
    made.delete_due()
    assert folders(tmp_path / "two", store).names() == {sealed}


def test_what_is_not_there_is_no_trouble(store: ObjectStore) -> None:
    with pytest.raises(NoSuchObject):
        store.get("nothing")
    assert store.trouble is None


def test_a_prefix_belongs_to_one_home_and_a_home_to_one_store(
    service: ObjectService, prefix: str, tmp_path: Path
) -> None:
    url = f"s3://{BUCKET}/{prefix}"
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for root in (one, two, three):
        root.mkdir()
    assert open_objects(one, None) is None
    assert open_objects(one, f"{url}/") is not None
    assert bound(one) == url
    again = open_objects(one, None)
    assert again is not None
    with pytest.raises(BadStore, match="belongs to another home"):
        open_objects(two, url)
    with pytest.raises(BadStore, match="keeps its objects in"):
        open_objects(one, f"{url}-other")
    (three / "weights" / "w").mkdir(parents=True)
    with pytest.raises(BadStore, match="tinkex home migrate"):
        open_objects(three, f"{url}-three")


@pytest.mark.parametrize("url", ["models", "http://host/x", "s3:/models", "memory:///"])
def test_what_is_no_object_store_is_refused_with_what_is(url: str) -> None:
    with pytest.raises(BadStore, match=r"s3://BUCKET/PREFIX"):
        ObjectStore(url)


def test_a_bucket_that_is_not_there_is_said(service: ObjectService, tmp_path: Path) -> None:
    with pytest.raises(BadStore, match="there is no such bucket: create it first"):
        open_objects(tmp_path, "s3://nowhere/x")


def test_wrong_credentials_are_a_refusal_and_said_as_one(
    service: ObjectService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret that is long enough")
    with pytest.raises(BadStore, match=r"refuses: 403 .*AWS_ACCESS_KEY_ID") as caught:
        open_objects(tmp_path, f"s3://{BUCKET}/x")
    assert "<" not in str(caught.value)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(store_module.importlib, "import_module", missing)
    with pytest.raises(BadStore, match=r"pip install 'tinkex\[s3\]'"):
        ObjectStore("s3://models/x")


def test_what_is_missing_with_all_else_is_a_store_that_is_away(
    service: ObjectService, prefix: str, tmp_path: Path, impatient: None
) -> None:
    """A bucket that is gone, or a proxy that knows no such address: nothing that was kept there is
    taken for lost, and nothing is kept back from whoever waits."""
    store = open_objects(tmp_path, f"s3://{BUCKET}/{prefix}")
    assert store is not None
    with pytest.raises(NoSuchObject):
        store.get("never")
    with _without(service, service.folder / BUCKET):
        for ask in (lambda: store.get("k"), lambda: store.put("k", b"1"), lambda: store.has("k")):
            with pytest.raises(StoreDown, match=r"nor is there its home\.json"):
                ask()
        assert "check its bucket" in str(store.trouble)
        with pytest.raises(StoreDown):
            store.delete(["k"])
    store.put("k", b"1")
    assert store.trouble is None


@contextmanager
def _without(service: ObjectService, bucket: Path) -> Iterator[None]:
    """The service remembers what a bucket had, unless it is started anew."""
    away = bucket.with_name("away")
    service.stop()
    bucket.rename(away)
    service.start()
    try:
        yield
    finally:
        service.stop()
        away.rename(bucket)
        service.start()


def test_a_folder_that_is_not_mounted_any_more_is_away_and_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    store = open_objects(tmp_path / "home", f"file://{tmp_path}/shared/it")
    assert store is not None
    (tmp_path / "shared").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreDown, match="not answer as itself"):
        store.put("k", b"1")
    assert not (tmp_path / "shared" / "it" / "k").exists()


def test_a_home_is_not_served_from_a_store_that_has_lost_everything(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    url = f"file://{tmp_path}/shared"
    assert open_objects(tmp_path / "home", url) is not None
    (tmp_path / "shared").rename(tmp_path / "elsewhere")
    with pytest.raises(BadStore, match=r"not even home\.json: check its bucket, endpoint or mount"):
        open_objects(tmp_path / "home", None)
