"""Promises of the meter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tinkex.server.storage.database import Store, checkpoints, open_store, sessions
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.server.storage.database.usage import Source
from tinkex.server.tenancy.usage import Meter


class Hands:
    def __init__(self) -> None:
        self.time = 7200.0 * 1000

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = open_store(tmp_path / "tinkex.db")
    row = sessions.SessionRow("s1", "alice", 1.0, 1.0, project_id="p1")
    await store.write(lambda db: sessions.insert(db, row))
    yield store
    store.close()


SOURCE = Source("alice", "s1", base_model="tiny")


async def test_amounts_of_one_hour_add_up_across_flushes(store: Store) -> None:
    clock = Hands()
    meter = Meter(store, clock)
    meter.add(SOURCE, "training", 10)
    await meter.flush()
    meter.add(SOURCE, "training", 5)
    meter.add(SOURCE, "sampling_prefill", 3, cached=True)
    meter.add(SOURCE, "sampling_prefill", 4)
    meter.add(SOURCE, "sampling_sample", 0)
    uses = await meter.between("alice", clock.time, clock.time + 3600)
    seen = {(use.measure, use.cached): use.amount for use in uses}
    assert seen == {
        ("training", False): 15,
        ("sampling_prefill", True): 3,
        ("sampling_prefill", False): 4,
    }
    assert {use.source.project_id for use in uses} == {"p1"}


async def test_hours_and_tenants_are_kept_apart(store: Store) -> None:
    clock = Hands()
    meter = Meter(store, clock)
    meter.add(SOURCE, "training", 1)
    clock.time += 3600
    meter.add(SOURCE, "training", 2)
    meter.add(Source("bob"), "training", 4)
    first = await meter.between("alice", clock.time - 3600, clock.time)
    second = await meter.between("alice", clock.time, clock.time + 1)
    assert [use.amount for use in first + second] == [1, 2]
    assert [use.amount for use in await meter.between("bob", 0, 1e12)] == [4]


async def test_storage_of_a_living_checkpoint_is_counted_up_to_the_question(store: Store) -> None:
    clock = Hands()
    row = CheckpointRow(
        path="tinker://s1:train:0/weights/a",
        model_id="s1:train:0",
        session_id="s1",
        tenant="alice",
        kind="weights",
        name="a",
        folder="f",
        base_model="tiny",
        rank=1,
        train_attn=True,
        train_mlp=True,
        train_unembed=True,
        optimizer='{"type": "adamw"}',
        step=0,
        size_bytes=2_000_000_000,
        created_at=clock.time,
        digest="",
    )
    await store.write(lambda db: checkpoints.put(db, row))
    meter = Meter(store, clock)
    clock.time += 1800
    first = await meter.between("alice", 0, 1e12)
    assert [use.amount for use in first] == [pytest.approx(1.0)]
    clock.time += 1800
    assert [use.amount for use in await meter.between("alice", 0, 1e12)] == [pytest.approx(2.0)]
    assert await meter.between("bob", 0, 1e12) == []
