"""Polls: large results announced first, fetched again, nobody else's, and custom losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.served import served
from tinkex.wire.protobuf import decode_forward_backward_output


async def test_a_large_result_is_announced_when_the_client_can_take_that(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.forward(model, 1, length=300_000)
        whole = await api.result(f"{model}:1")
        body = {"request_id": f"{model}:1", "allow_metadata_only": True}
        announced = await api.post("retrieve_future", body)
        assert announced == {"status": "complete_metadata", "response_payload_size": len(whole)}
        assert (await api.poll(f"{model}:1")).content == whole
        assert len(decode_forward_backward_output(whole).loss_fn_outputs) == 1


async def test_small_results_are_never_only_announced(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.step(model, 1)
        await api.result(f"{model}:1")
        body = {"request_id": f"{model}:1", "allow_metadata_only": True}
        assert "metrics" in await api.post("retrieve_future", body)


async def test_a_result_comes_from_the_disk_once_it_has_left_memory(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.forward(model, 1, length=30_000)
        await api.forward(model, 2)
        first = [await api.result(f"{model}:{seq}") for seq in (1, 2)]
        for seq in (1, 2):
            api.core.promises.drop(f"{model}:{seq}")
        assert [await api.result(f"{model}:{seq}") for seq in (1, 2)] == first
        eve = await api.as_tenant("tml-eve").poll(f"{model}:1")
        assert eve.status_code == 404


async def test_unknown_futures_are_not_found(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        for request_id in ("", "x", "a:b:c", "s:train:0:99", "s:sample:0:1", "\u0000", "x" * 4000):
            assert (await api.poll(request_id)).status_code == 404


def _loss(session: str, number: int) -> dict[str, Any]:
    node = {"op": "placeholder", "name": "logprobs", "target": "logprobs", "args": [], "kwargs": {}}
    return {
        "session_id": session,
        "custom_loss_seq_id": number,
        "name": "mine",
        "inputs": [{"name": "logprobs", "rank": 1}],
        "graph": {"format": 1, "nodes": [node]},
    }


async def test_a_custom_loss_is_checked_once_kept_and_its_owners_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        made = await api.post("create_custom_loss", _loss(session, 0))
        again = await api.post("create_custom_loss", _loss(session, 0))
        assert made == again
        loss_id = (await api.result(made["request_id"]))["loss_id"]
        other = {**_loss(session, 0), "name": "other"}
        await api.post("create_custom_loss", other, expect=422)
        refused = await api.post("create_custom_loss", _loss(session, 666))
        assert (await api.result(refused["request_id"]))["category"] == "user"
        eve = api.as_tenant("tml-eve")
        assert (await eve.poll(loss_id)).status_code == 404
    async with served(tmp_path) as api:
        assert (await api.result(made["request_id"]))["loss_id"] == loss_id


async def test_bodies_being_received_have_a_budget(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        with api.core.receiving.growing("somebody") as take:
            take(api.core.settings.limits.receiving_bytes - 10)
            response = await api.send("POST", "create_session", json={"tags": ["x" * 100]})
            assert response.status_code == 429
        assert api.core.receiving.used == 0
        await api.session()
