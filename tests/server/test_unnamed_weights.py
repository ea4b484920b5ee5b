"""Weights without a name: live ones are never touched, the others go by reason and in order."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tinkex.server.engines.unwritten_weights import UnwrittenWeights
from tinkex.server.listening import Listening
from tinkex.server.refusals import NotFound, Refusal
from tinkex.server.sampling.samplers import Samplers
from tinkex.server.sampling.unnamed_weights import NEWEST_KEPT, Freed, UnnamedWeights
from tinkex.server.settings import Limits, Settings
from tinkex.server.storage.blobs import SegmentBlobs
from tinkex.server.storage.database import Store, checkpoints, open_store, samplers, sessions
from tinkex.server.storage.database.samplers import SamplerRow
from tinkex.server.storage.folders import Folders
from tinkex.server.storage.home_storage import HomeStorage
from tinkex.server.storage.pins import Pins

SIZE = 100
LIMIT = 10 * SIZE
HOUR = 3600.0


class _Clock:
    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


class _World:
    """A home with samplers of one session, each with a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.clock = _Clock()
        self.listening = Listening(self.clock)
        self.store: Store = open_store(root / "tinkex.db")
        self.folders = Folders(root / "weights")
        storage = HomeStorage(
            self.store,
            SegmentBlobs(root / "payloads"),
            self.folders,
            Folders(root / "snapshots"),
            Pins(root / "pins"),
        )
        nobody: Any = None
        self.samplers = Samplers(storage, nobody, nobody, UnwrittenWeights(), self.clock)
        self.busy: set[str] = set()
        limits = Limits(unnamed_sampler_bytes_per_tenant=LIMIT)
        self.weights = UnnamedWeights(
            storage,
            self.samplers,
            lambda: self.busy,
            self.clock,
            self.listening,
            Settings(root, (), limits=limits),
        )

    async def session(self, name: str, tenant: str = "t") -> None:
        row = sessions.SessionRow(name, tenant, self.clock.now(), self.clock.now())
        await self.store.write(lambda db: sessions.insert(db, row))

    async def save(self, session: str, number: int, tenant: str = "t") -> str:
        await self.weights.admit(tenant)
        folder = self.folders.begin()
        (folder / "adapter").write_bytes(bytes(SIZE))
        sampler_id = f"{session}:sample:{number}"
        name = self.folders.seal(folder)
        row = SamplerRow(sampler_id, session, tenant, "m", self.clock.now(), folder=name)
        await self.store.write(lambda db: samplers.insert(db, row))
        self.listen(1.0)
        return sampler_id

    def listen(self, seconds: float) -> None:
        """Let time pass, looked at every minute."""
        for _ in range(math.ceil(seconds / 60.0)):
            self.clock.at += min(seconds, 60.0)
            self.listening.look()

    async def left(self) -> set[str]:
        """Samplers that are there with their weights; none may be there without."""
        rows = await self.store.read(samplers.unnamed)
        assert all(self.folders.path(row.folder).is_dir() for row in rows)
        assert len(self.folders.names()) == len({row.folder for row in rows})
        return {row.sampler_id for row in rows}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[_World]:
    made = _World(tmp_path)
    await made.session("s")
    yield made
    made.store.close()


async def test_over_the_limit_the_least_recently_used_go_and_it_is_said_why(
    world: _World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ids = [await world.save("s", number) for number in range(10)]
    world.listen(HOUR)
    await world.samplers.owned("t", ids[0])
    world.listen(HOUR)
    await world.samplers.owned("t", ids[1])
    last = await world.save("s", 10)
    assert await world.left() == {ids[0], ids[1], *ids[3:], last}
    assert f"the limit {LIMIT}" in caplog.text


async def test_live_ones_are_never_touched_and_a_save_is_refused_with_the_reason(
    world: _World,
) -> None:
    ids = {await world.save("s", number) for number in range(10)}
    with pytest.raises(Refusal, match="unnamed_sampler_bytes_per_tenant"):
        await world.save("s", 10)
    assert await world.left() == ids


async def test_a_sample_under_way_and_the_newest_keep_theirs(world: _World) -> None:
    ids = [await world.save("s", number) for number in range(8)]
    world.busy = {ids[1]}
    world.listen(HOUR)
    freed = await world.weights.collect("asked")
    kept = {ids[1], *ids[-NEWEST_KEPT:]}
    assert await world.left() == kept
    assert freed == Freed(8 - len(kept), (8 - len(kept)) * SIZE)


async def test_of_an_ended_session_all_may_go_and_go_first(world: _World) -> None:
    await world.session("old")
    ended = {await world.save("old", number) for number in range(3)}
    live = {await world.save("s", number) for number in range(7)}
    at = world.clock.now()
    await world.store.write(lambda db: sessions.end(db, "old", "finished", None, None, at))
    world.listen(HOUR)
    await world.save("s", 7)
    assert len(await world.left() & ended) == 2
    assert live <= await world.left()


async def test_one_tenant_makes_no_room_at_the_cost_of_another(world: _World) -> None:
    await world.session("theirs", "other")
    theirs = {await world.save("theirs", number, "other") for number in range(9)}
    world.listen(HOUR)
    for number in range(10):
        await world.save("s", number)
    world.listen(HOUR)
    await world.save("s", 10)
    assert theirs <= await world.left()


async def test_what_was_let_go_is_not_served_and_the_answer_says_why(world: _World) -> None:
    first = await world.save("s", 0)
    await world.samplers.owned("t", first)
    for number in range(1, 6):
        await world.save("s", number)
    world.listen(HOUR)
    await world.weights.collect("asked")
    with pytest.raises(NotFound, match="weights saved with a name stay"):
        await world.samplers.owned("t", first)


async def test_weights_that_a_checkpoint_names_are_not_unnamed(world: _World) -> None:
    ids = [await world.save("s", number) for number in range(6)]
    row = await world.samplers.find(ids[0])
    assert row is not None
    folder = row.folder
    saved = checkpoints.CheckpointRow(
        path="tinker://s:train:0/sampler_weights/one",
        model_id="s:train:0",
        session_id="s",
        tenant="t",
        kind="sampler_weights",
        name="one",
        folder=str(folder),
        base_model="m",
        rank=1,
        train_attn=True,
        train_mlp=True,
        train_unembed=True,
        optimizer="{}",
        step=1,
        size_bytes=SIZE,
        created_at=1.0,
        digest="",
    )
    await world.store.write(lambda db: checkpoints.put(db, saved))
    world.listen(HOUR)
    await world.weights.collect("asked")
    assert world.folders.path(str(folder)).is_dir()
    assert (await world.samplers.owned("t", ids[0])).folder == folder


async def test_two_saves_at_once_are_admitted_one_after_the_other(world: _World) -> None:
    for number in range(9):
        await world.save("s", number)
    world.listen(HOUR)
    await asyncio.gather(*(world.save("s", number) for number in (9, 10, 11)))
    assert len(await world.left()) * SIZE <= LIMIT + 2 * SIZE


async def test_a_jump_of_the_clock_makes_no_weights_expendable(world: _World) -> None:
    made = {await world.save("s", number) for number in range(NEWEST_KEPT + 2)}
    world.clock.at += 100 * HOUR  # asleep
    world.listening.look()
    assert await world.weights.collect("asked") == Freed()
    assert await world.left() == made
    world.listen(HOUR)
    assert (await world.weights.collect("asked")).samplers == 2
