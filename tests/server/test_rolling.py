"""An operator drains and restarts engines; clients see a pause with its reason and lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.served import Api, served
from tinkex.server.tenancy.tenants import hash_key

OPERATOR = "tml-operator"


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not happened():
            await asyncio.sleep(0.005)


def keys() -> dict[str, Any]:
    known = {hash_key(key): key.removeprefix("tml-") for key in ("tml-alice", OPERATOR)}
    return {"keys": known, "operators": {hash_key(OPERATOR)}}


async def ready(api: Api) -> None:
    await until(lambda: all(engine.is_ready for engine in api.core.engines))


async def states(api: Api) -> dict[str, str]:
    response = await api.as_tenant(OPERATOR).send("GET", "engines")
    return {each["engine"]: each["state"] for each in response.json()["engines"]}


async def trained(api: Api, model: str, seq: int) -> None:
    await api.step(model, seq)
    await api.result(f"{model}:{seq}")


async def test_engines_are_restarted_one_after_another_and_a_run_goes_on(tmp_path: Path) -> None:
    async with served(tmp_path, engines=2, **keys()) as api:
        await ready(api)
        model = await api.model(await api.session())
        await trained(api, model, 1)
        await api.as_tenant(OPERATOR).post("engines/restart", {})
        for seq in range(2, 8):
            await trained(api, model, seq)
        await until(lambda: [engine.life for engine in api.core.engines] == [2, 2])
        await until(lambda: all(engine.takes_work for engine in api.core.engines))
        await trained(api, model, 8)
        holders = [w for w in api.engine.workers if model in w.runs and not w.is_dead]
        assert [len(worker.runs[model]) for worker in holders] == [9]
        assert [engine.deaths for engine in api.core.engines] == [0, 0], "nothing died"
        assert api.core.carrier.replay_differences == 0
        assert set((await states(api)).values()) == {"ready"}
        health = (await api.send("GET", "healthz")).json()
        assert {each["engine"]: each["state"] for each in health["engines"]} == await states(api)


async def test_the_only_engine_of_a_model_can_be_restarted_and_who_waits_is_told_why(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, **keys()) as api:
        await ready(api)
        model = await api.model(await api.session())
        await trained(api, model, 1)
        [name] = await states(api)
        await api.as_tenant(OPERATOR).post("engines/drain", {"engine": name})
        await until(lambda: not api.engine.current.runs)
        assert await states(api) == {name: "drained"}
        await api.step(model, 2)
        _, reason = api.core.futures.explain(f"{model}:2")
        assert "drained by its operator" in reason
        assert (await api.send("GET", "healthz")).status_code == 503
        await api.as_tenant(OPERATOR).post("engines/resume", {"engine": name})
        await api.result(f"{model}:2")
        assert api.applied(model) == ["step:0.1"] * 2


async def test_engines_are_for_operators_only_and_by_their_names(tmp_path: Path) -> None:
    async with served(tmp_path, **keys()) as api:
        await ready(api)
        assert (await api.send("GET", "engines")).status_code == 404
        await api.post("engines/restart", {}, expect=404)
        refused = await api.as_tenant(OPERATOR).post("engines/drain", {"engine": "x"}, expect=404)
        assert "fake/model#0" in refused["detail"]
        assert all(engine.draining is None for engine in api.core.engines)
