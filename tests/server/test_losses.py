"""Custom losses: checked, kept for their session, sent along with each use, and freed with it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from support.losses import LOGPROBS, graph, node
from support.served import Api, forward_body, served
from tinkex.server.operations import custom_losses
from tinkex.server.settings import Limits

REFUSED = 666
"""The number of a loss that the fake engine refuses."""


def _request(session: str, number: int) -> dict[str, Any]:
    return {
        "session_id": session,
        "custom_loss_seq_id": number,
        "name": "mine",
        "inputs": [{"name": "logprobs", "rank": 1}],
        "graph": {"format": 1, "nodes": graph(node("torch.sum", LOGPROBS, number))},
    }


async def _made(api: Api, session: str, number: int = 0) -> str:
    made = await api.post("create_custom_loss", _request(session, number))
    return str((await api.result(made["request_id"]))["loss_id"])


def _use(model: str, seq: int, loss_id: str) -> bytes:
    return forward_body(model, seq, loss="custom", config={"loss_id": loss_id})


async def _kept(api: Api) -> list[str]:
    return await api.core.store.read(
        lambda db: [row[0] for row in db.execute("SELECT loss_id FROM losses ORDER BY loss_id")]
    )


async def test_no_number_of_losses_uses_up_the_engine(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        custom_losses = [await _made(api, session, number) for number in range(300)]
        model = await api.model(session)
        for seq, loss in enumerate((custom_losses[0], custom_losses[-1]), start=1):
            await api.forward(model, seq, content=_use(model, seq, loss))
            assert isinstance(await api.result(f"{model}:{seq}"), bytes)


async def test_a_loss_is_freed_with_its_session_once_its_last_run_has_ended(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        session, other = await api.session(), await api.session()
        loss, kept = await _made(api, session), await _made(api, other)
        model = await api.model(session)
        await api.forward(model, 1, content=_use(model, 1, loss))
        await api.post(
            f"sessions/{session}/finish", {"reason": {"type": "success"}, "detail": None}
        )
        await api.result(f"{model}:1")
        assert loss in await _kept(api), "not before its session's run is over"
        await api.core.maintenance.tick()
        await api.core.maintenance.tick()
        assert await _kept(api) == [kept]


async def test_a_loss_works_in_its_own_session_only(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        loss = await _made(api, await api.session())
        model = await api.model(await api.session())
        await api.forward(model, 1, content=_use(model, 1, loss))
        refused = await api.result(f"{model}:1")
        assert refused["category"] == "user"
        assert "in this model's session" in refused["error"]


async def test_a_keys_losses_have_a_budget_and_nobody_elses_count(tmp_path: Path) -> None:
    size = len(json.dumps(_request("", 0)["graph"]["nodes"]))
    async with served(tmp_path, limits=Limits(loss_bytes_per_tenant=2 * size)) as api:
        session = await api.session()
        for number in range(2):
            await _made(api, session, number)
        refused = await api.post("create_custom_loss", _request(session, 2), expect=422)
        assert "finish sessions" in refused["detail"]
        again = await api.post("create_custom_loss", _request(session, 1))
        assert (await api.result(again["request_id"]))["loss_id"]
        eve = api.as_tenant("tml-eve")
        await _made(eve, await eve.session())


async def test_the_reasons_of_failed_uploads_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_losses, "REFUSED_KEPT", 3)
    async with served(tmp_path) as api:
        ids = []
        for _ in range(8):
            made = await api.post("create_custom_loss", _request(await api.session(), REFUSED))
            ids.append(made["request_id"])
            assert (await api.result(ids[-1]))["category"] == "user"
        kept = [one for one in ids if api.core.promises.get(one) is not None]
        assert kept == ids[-3:]


async def test_a_loss_that_cannot_be_kept_ends_its_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        with monkeypatch.context() as full:
            full.setattr(custom_losses.table, "insert_once", _disk_full)
            made = await api.post("create_custom_loss", _request(session, 0))
            assert (await api.result(made["request_id"]))["category"] == "server"


def _disk_full(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")
