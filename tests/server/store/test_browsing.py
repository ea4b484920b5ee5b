"""What people look at: in turns, and no work of the server's waits for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from support.served import served
from tinkex.server.storage.database import open_store

WAIT_S = 60.0
LISTS = ("training_runs", "sessions", "checkpoints", "billing/usage/checkpoints/current", "audit")


async def test_a_lookup_that_takes_long_holds_up_neither_work_nor_the_next_tenant(
    tmp_path: Path,
) -> None:
    store, gate, order = open_store(tmp_path / "rows.db"), threading.Event(), list[str]()

    def note(name: str) -> Any:
        return lambda _: order.append(name)

    eves = [asyncio.create_task(store.browse("eve", lambda _: gate.wait(WAIT_S)))]
    eves += [asyncio.create_task(store.browse("eve", note(f"eve{index}"))) for index in range(3)]
    await asyncio.sleep(0)
    bobs = asyncio.create_task(store.browse("bob", note("bob")))
    assert await asyncio.wait_for(store.query(lambda _: "work"), WAIT_S) == "work"
    assert await asyncio.wait_for(store.read(lambda _: "work"), WAIT_S) == "work"
    gate.set()
    await asyncio.gather(bobs, *eves)
    assert order.index("bob") <= 1
    store.close()


async def test_a_save_does_not_wait_for_those_who_look(tmp_path: Path) -> None:
    """A search of one key that took 15 s kept everybody from saving for as long."""
    gate = threading.Event()
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        looking = asyncio.create_task(api.core.store.browse("eve", lambda _: gate.wait(WAIT_S)))
        bob = api.as_tenant("tml-bob")
        bobs = [asyncio.create_task(bob.send("GET", path)) for path in LISTS]
        body = {"model_id": model, "seq_id": 1, "path": "one"}
        saved = await api.post("save_weights", body)
        assert (await api.result(saved["request_id"]))["path"].endswith("/one")
        assert not any(each.done() for each in (looking, *bobs)), "one at a time looks"
        gate.set()
        assert {(await each).status_code for each in bobs} == {200}
        await looking


async def test_a_search_looks_for_so_many_things_and_no_more(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        await api.post("sessions/search", {"user_metadata": {str(n): "x" for n in range(32)}})
        many = {"user_metadata": {str(n): "x" for n in range(33)}}
        assert "33 entries; the limit is 32" in str(await api.post("sessions/search", many, 422))
        words = {"display_name": "a " * 33}
        assert "33 words; the limit is 32" in str(await api.post("sessions/search", words, 422))
        reasons = [{"type": "client_finished", "reasons": ["success"] * 33}]
        refused = await api.post("sessions/search", {"statuses": reasons}, 422)
        assert "33 entries; the limit is 32" in str(refused)
