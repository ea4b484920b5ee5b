"""Promises of the checkpoint service, on a real store and real folders."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pyrage
import pytest

from tinkex.engine.messages import SaveResult
from tinkex.server.checkpoints import rules
from tinkex.server.checkpoints.rules import Save
from tinkex.server.checkpoints.service import Checkpoints, TakenName
from tinkex.server.refusals import NotFound, Refusal
from tinkex.server.storage.database import Store, audit, open_store, runs, sessions, usage
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.folders import Folders


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


RUN = RunRow(
    model_id="s1:train:0",
    session_id="s1",
    tenant="alice",
    base_model="Qwen/Qwen3-8B",
    optimizer='{"type": "adamw"}',
    created_at=1.0,
    requested_at=1.0,
    rank=8,
    train_attn=True,
    train_mlp=False,
    train_unembed=True,
)


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = open_store(tmp_path / "tinkex.db")
    row = sessions.SessionRow("s1", "alice", 1.0, 1.0, project_id="p1")
    await store.write(lambda db: sessions.insert(db, row))
    await store.write(lambda db: runs.insert(db, RUN))
    yield store
    store.close()


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "folders")


@pytest.fixture
def checkpoints(store: Store, folders: Folders, clock: Hands) -> Checkpoints:
    return Checkpoints(store, folders, clock, name_limit=128, tenant_bytes=lambda _: 10_000)


def draft(folders: Folders, content: bytes = b"weights") -> Path:
    folder = folders.begin()
    (folder / "adapter_model.safetensors").write_bytes(content)
    (folder / "adapter_config.json").write_text('{"r": 8, "base_model_name_or_path": "/x"}')
    return folder


async def saved(
    checkpoints: Checkpoints, store: Store, folders: Folders, save: Save, content: bytes = b"w"
) -> CheckpointRow:
    await checkpoints.admit(save)
    row = await checkpoints.seal(save, draft(folders, content), SaveResult(3, 0))
    await store.write(lambda db: checkpoints.record(db, save, row))
    return row


async def test_a_saved_checkpoint_is_found_checked_and_knows_how_to_be_loaded(
    checkpoints: Checkpoints, store: Store, folders: Folders
) -> None:
    save = Save(RUN, "weights", "step-3", user_metadata={"note": "x"})
    await saved(checkpoints, store, folders, save)
    row = await checkpoints.find("alice", "tinker://s1:train:0/weights/step-3")
    assert (row.rank, row.train_mlp, row.base_model, row.step) == (8, False, "Qwen/Qwen3-8B", 3)
    assert (row.user_metadata, row.project_id) == ({"note": "x"}, "p1")
    folder = await checkpoints.verified(row)
    assert row.size_bytes == sum(p.stat().st_size for p in folder.glob("adapter*"))
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config == {"r": 8, "base_model_name_or_path": "Qwen/Qwen3-8B"}


async def test_a_flipped_byte_is_refused_on_load(
    checkpoints: Checkpoints, store: Store, folders: Folders
) -> None:
    row = await saved(checkpoints, store, folders, Save(RUN, "weights", "a"))
    path = folders.path(row.folder) / "adapter_model.safetensors"
    path.chmod(0o644)
    path.write_bytes(b"v")
    with pytest.raises(Refusal, match=r"adapter_model\.safetensors was changed"):
        await checkpoints.verified(row)


async def test_names_are_unique_per_run_and_kind_unless_overwriting_was_asked(
    checkpoints: Checkpoints, store: Store, folders: Folders
) -> None:
    first = await saved(checkpoints, store, folders, Save(RUN, "weights", "a"))
    await saved(checkpoints, store, folders, Save(RUN, "sampler_weights", "a"))
    with pytest.raises(TakenName, match="overwrite"):
        await checkpoints.admit(Save(RUN, "weights", "a"))
    with pytest.raises(TakenName, match="delete it first"):
        await checkpoints.admit(Save(RUN, "sampler_weights", "a"))
    again = Save(RUN, "weights", "a", overwrite=True)
    second = await saved(checkpoints, store, folders, again, b"other")
    assert (await checkpoints.find("alice", first.path)).folder == second.folder != first.folder
    assert folders.path(first.folder).exists(), "samplers may still point at it"


async def test_two_saves_racing_for_one_name_leave_one(
    checkpoints: Checkpoints, store: Store, folders: Folders
) -> None:
    save = Save(RUN, "weights", "a")
    one = await checkpoints.seal(save, draft(folders, b"1"), SaveResult(1, 0))
    two = await checkpoints.seal(save, draft(folders, b"2"), SaveResult(1, 0))
    await store.write(lambda db: checkpoints.record(db, save, one))
    with pytest.raises(TakenName):
        await store.write(lambda db: checkpoints.record(db, save, two))
    assert (await checkpoints.find("alice", save.path)).folder == one.folder


@pytest.mark.parametrize(
    "name", ["", "..", ".hidden", "a/b", "a b", "a\n", "é", "a\x00", "x" * 129, "a%2Fb", "-rf"]
)
async def test_a_bad_name_is_refused_before_anything_is_written(
    checkpoints: Checkpoints, name: str
) -> None:
    with pytest.raises(Refusal, match="letters, digits"):
        await checkpoints.admit(Save(RUN, "weights", name))


@pytest.mark.parametrize("ttl", [0, -1, 3599, rules.MAX_TTL_SECONDS + 1])
async def test_a_ttl_outside_an_hour_to_ten_years_is_refused(
    checkpoints: Checkpoints, store: Store, folders: Folders, ttl: int
) -> None:
    with pytest.raises(Refusal, match=f"ttl_seconds is {ttl}"):
        await checkpoints.admit(Save(RUN, "weights", "a", ttl_seconds=ttl))
    row = await saved(checkpoints, store, folders, Save(RUN, "weights", "a"))
    with pytest.raises(Refusal, match="ttl_seconds"):
        await checkpoints.set_ttl("alice", row.path, ttl)


async def test_a_checkpoint_ends_with_its_ttl_and_clearing_it_keeps_it(
    checkpoints: Checkpoints, store: Store, folders: Folders, clock: Hands
) -> None:
    short = await saved(checkpoints, store, folders, Save(RUN, "weights", "a", ttl_seconds=3600))
    kept = await saved(checkpoints, store, folders, Save(RUN, "weights", "b", ttl_seconds=3600))
    await checkpoints.set_ttl("alice", kept.path, None)
    assert await checkpoints.expire() == 0
    clock.time += 3600
    with pytest.raises(NotFound):
        await checkpoints.find("alice", short.path)
    assert await checkpoints.expire() == 1
    assert (await checkpoints.find("alice", kept.path)).expires_at is None
    assert [entry.event for entry in await log(store)][-1] == "checkpoint.expire"


async def log(store: Store) -> list[audit.AuditRow]:
    return await store.query(lambda db: audit.between(db, "alice", None, 0, 1e12, 100))


async def test_others_see_a_checkpoint_only_while_it_is_published_and_never_change_it(
    checkpoints: Checkpoints, store: Store, folders: Folders
) -> None:
    path = (await saved(checkpoints, store, folders, Save(RUN, "weights", "a"))).path
    with pytest.raises(NotFound):
        await checkpoints.find("bob", path)
    assert (await checkpoints.find("bob", path, bearer="alice")).path == path
    await checkpoints.set_public("alice", path, True)
    await checkpoints.set_public("alice", path, True)
    assert (await checkpoints.find("bob", path)).public
    for change in (
        checkpoints.delete("bob", path),
        checkpoints.set_public("bob", path, False),
        checkpoints.set_ttl("bob", path, None),
    ):
        with pytest.raises(NotFound, match="only its owner"):
            await change
    await checkpoints.set_public("alice", path, False)
    with pytest.raises(NotFound):
        await checkpoints.find("bob", path)
    events = [entry.event for entry in await log(store)]
    assert events == ["checkpoint.create", "checkpoint.publish", "checkpoint.unpublish"]


async def test_a_copy_outlives_its_source_and_the_same_key_copies_once(
    checkpoints: Checkpoints, store: Store, folders: Folders
) -> None:
    source = await saved(checkpoints, store, folders, Save(RUN, "weights", "a"))
    await checkpoints.set_public("alice", source.path, True)
    found = await checkpoints.find("bob", source.path)
    path = await checkpoints.copy("bob", found, "proj", 3600, "key-1")
    assert await checkpoints.copy("bob", found, "proj", 3600, "key-1") == path
    other = await checkpoints.copy("bob", found, None, None, "key-2")
    assert other != path
    await checkpoints.delete("alice", source.path)
    copy = await checkpoints.owned("bob", path)
    assert (copy.project_id, copy.public, copy.name) == ("proj", False, "a")
    await checkpoints.verified(copy)
    run, _, _ = rules.parse_path(path)
    row = await store.read(lambda db: runs.get(db, run))
    assert row is not None
    assert (row.tenant, row.rank, row.state) == ("bob", 8, "ended")


async def test_the_byte_quota_of_a_tenant_is_kept_and_says_what_to_do(
    checkpoints: Checkpoints, store: Store, folders: Folders
) -> None:
    await saved(checkpoints, store, folders, Save(RUN, "weights", "big"), b"x" * 10_000)
    with pytest.raises(Refusal, match=r"limit is 10000.*delete some"):
        await checkpoints.admit(Save(RUN, "weights", "b"))
    await checkpoints.admit(
        Save(dataclasses.replace(RUN, tenant="bob", model_id="x"), "weights", "b")
    )


async def test_an_encrypted_export_holds_only_encrypted_files(
    checkpoints: Checkpoints, store: Store, folders: Folders
) -> None:
    identity = pyrage.x25519.Identity.generate()
    save = Save(RUN, "external_weights", "out", recipients=(str(identity.to_public()),))
    row = await saved(checkpoints, store, folders, save)
    folder, names = await checkpoints.folder(row), tuple(await checkpoints.files(row))
    assert names == ("adapter_config.json.age", "adapter_model.safetensors.age")
    sealed = (folder / names[1]).read_bytes()
    assert pyrage.decrypt(sealed, [identity]) == b"w"
    await checkpoints.verified(row)


async def test_a_bad_recipient_is_refused_before_anything_is_written(
    checkpoints: Checkpoints,
) -> None:
    with pytest.raises(Refusal, match=r"recipients\[0\]"):
        await checkpoints.admit(Save(RUN, "external_weights", "out", recipients=("age1x",)))


async def test_what_checkpoints_use_is_counted_by_hour(
    checkpoints: Checkpoints, store: Store, folders: Folders, clock: Hands
) -> None:
    start = clock.time
    row = await saved(checkpoints, store, folders, Save(RUN, "weights", "a"), b"x" * 5000)
    clock.time += 5400
    await checkpoints.delete("alice", row.path)
    uses = await store.query(lambda db: usage.between(db, "alice", 0, 1e12))
    assert [use.amount for use in uses if use.measure == "checkpoint"] == [1]
    stored = [use for use in uses if use.measure == "storage"]
    assert [use.hour for use in stored] == [usage.hour_of(start), usage.hour_of(start) + 3600]
    assert sum(use.amount for use in stored) == pytest.approx(row.size_bytes / 1e9 * 1.5)
    assert stored[0].source == usage.Source("alice", "s1", "p1", "Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "x",
        "tinker://a/b/c",
        "tinker://r/weights/",
        "tinker://r/weights/a/b",
        "tinker:///weights/a",
    ],
)
async def test_a_malformed_path_is_refused(checkpoints: Checkpoints, path: str) -> None:
    with pytest.raises(Refusal, match="is not tinker://"):
        await checkpoints.find("alice", path)
