"""The dashboard's JSON: what was trained and sampled is there, in the shapes described, for those
it belongs to and for operators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from support.served import MODEL, Api, served
from tinkex.server.http import dashboard_shapes as shapes
from tinkex.server.settings import Limits
from tinkex.server.storage.database.points import Point
from tinkex.server.tenancy.tenants import hash_key

KEYS = {hash_key(f"tml-{name}"): name for name in ("alice", "bob", "root")}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    operators = frozenset({hash_key("tml-root")})
    async with served(tmp_path, keys=KEYS, operators=operators) as api:
        yield api


@pytest.fixture
async def run(api: Api) -> str:
    """A run of Alice's with three steps, of two calls each, and a checkpoint."""
    model = await api.model(await api.session())
    for seq in range(1, 10, 3):
        calls = [await api.forward(model, seq), await api.forward(model, seq + 1)]
        calls.append(await api.step(model, seq + 2, rate=0.5))
        for call in calls:
            await api.result(call["request_id"])
    saved = await api.post("save_weights", {"model_id": model, "path": "a", "seq_id": 10})
    await api.result(saved["request_id"])
    return model


async def get(api: Api, path: str, shape: type[BaseModel] | None, expect: int = 200) -> Any:
    headers = {"x-api-key": api.key}
    response = await api.client.get(f"/api/dashboard/{path}", headers=headers)
    assert response.status_code == expect, response.text
    if shape is not None:
        shape.model_validate(response.json(), strict=False)
    return response.json()


async def test_a_run_has_a_point_for_every_step(api: Api, run: str) -> None:
    found = await get(api, f"runs/{run}/history", shapes.History)
    assert found["points"] == found["last"] == 3
    assert found["series"]["learning_rate"]["mean"] == [0.5] * 3
    assert found["series"]["tokens"]["mean"] == [6.0] * 3
    assert found["series"]["loss"]["x"] == [1.0, 2.0, 3.0]
    one = await get(api, f"runs/{run}/history?metrics=loss&from=2&to=2", shapes.History)
    assert list(one["series"]) == ["loss"]
    assert one["series"]["loss"]["x"] == [2.0]


async def test_a_run_is_listed_with_its_curve_and_can_be_searched_for(api: Api, run: str) -> None:
    listed = await get(api, "runs", shapes.Runs)
    assert [each["run"] for each in listed["runs"]] == [run]
    assert listed["runs"][0]["step"] == 3
    assert len(listed["runs"][0]["spark"]["y"]) == 3
    await api.send("PUT", f"training_runs/{run}/name", json={"name": "Curious Cat"})
    for query, count in (("search=curious", 1), ("search=dog", 0), ("state=ended", 0)):
        assert len((await get(api, f"runs?{query}", shapes.Runs))["runs"]) == count
    details = await get(api, f"runs/{run}", shapes.RunDetails)
    assert details["name"] == "Curious Cat"
    assert {"loss", "learning_rate"} <= {metric["name"] for metric in details["metrics"]}
    saved = (await get(api, "checkpoints", shapes.Checkpoints))["checkpoints"]
    assert [each["name"] for each in details["checkpoints"]] == ["a"]
    assert details["checkpoints"] == saved
    samples = (await get(api, f"samples?run={run}", shapes.Samples))["samples"]
    assert {each["run_name"] for each in [*saved, *samples]} == {"Curious Cat"}


async def test_a_run_made_from_a_checkpoint_names_it(api: Api, run: str) -> None:
    path = f"tinker://{run}/weights/a"
    body = {"model_id": run, "path": path, "optimizer": True, "seq_id": 11}
    await api.result((await api.post("load_weights", body))["request_id"])
    assert (await get(api, f"runs/{run}", shapes.RunDetails))["parent"] == path


async def test_training_examples_are_kept_and_go_with_their_run(api: Api, run: str) -> None:
    found = await get(api, f"samples?run={run}", shapes.Samples)
    assert found["recording"]
    assert len(found["samples"]) == 6
    assert found["samples"][0]["kind"] == "datum"
    assert found["samples"][0]["output"]["tokens"] == [1, 2, 3]
    older = found["samples"][2]["id"]
    assert len((await get(api, f"samples?before={older}", shapes.Samples))["samples"]) == 3
    await api.send("POST", f"training_runs/{run}/stop")
    assert (await api.send("DELETE", f"training_runs/{run}")).status_code == 200
    assert not (await get(api, "samples", shapes.Samples))["samples"]
    await get(api, f"samples?run={run}", None, expect=404)
    await get(api, f"runs/{run}/history", None, expect=404)
    left = await api.core.store.read(
        lambda db: db.execute("SELECT COUNT(*) FROM points").fetchone()
    )
    assert left[0] == 0


async def test_where_nothing_is_recorded_nothing_is_kept(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.result((await api.forward(model, 1))["request_id"])
        assert (await get(api, "samples", shapes.Samples))["samples"]
    async with served(tmp_path, record_samples=False) as api:
        found = await get(api, "samples", shapes.Samples)
        assert found == {"recording": False, "samples": []}
        await api.result((await api.forward(model, 2))["request_id"])
        assert not (await get(api, "samples", shapes.Samples))["samples"]


async def test_the_present_says_why_work_waits(api: Api) -> None:
    model = await api.model(await api.session())
    await api.forward(model, 2)
    await api.send("PUT", f"training_runs/{model}/name", json={"name": "Patient Cat"})
    now = await get(api, "now", shapes.Now)
    assert now["engines"][0]["model"] == MODEL
    assert now["engines"][0]["phase"] == "ready"
    waiting = now["queue"][0]
    assert (waiting["run"], waiting["count"], waiting["tenant"]) == (model, 1, "alice")
    assert waiting["name"] == "Patient Cat"
    assert "seq_id 1, which has not arrived" in waiting["reason"]
    assert now["viewer"] == {"tenant": "alice", "operator": False}


async def test_the_servers_history_counts_what_waits_by_its_cause(api: Api) -> None:
    model = await api.model(await api.session())
    await api.forward(model, 2)
    await api.core.watch.look(leave_point=True)
    series = (await get(api, "server/history", shapes.History))["series"]
    newest = {name: curve["mean"][-1] for name, curve in series.items()}
    assert (newest["operations_waiting"], newest["waiting_for_request"]) == (1.0, 1.0)
    assert newest["waiting_for_turn"] == newest["waiting_for_engine"] == 0.0


@pytest.mark.parametrize(
    ("metric", "before", "after", "kind"),
    [
        ("grad_norm", 1.0, 99.0, "exploding_norm"),
        ("sampler_gap", 0.01, 0.2, "sampler_gap"),
        ("zero_advantages", 0.9, 0.9, "zero_advantages"),
        ("step_s", 1.0, 1.0, "stalled_client"),
    ],
)
async def test_what_is_wrong_with_a_run_is_said_to_its_owner_and_to_nobody_else(
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    metric: str,
    before: float,
    after: float,
    kind: str,
) -> None:
    model = await api.model(await api.session())
    at = api.core.clock.now() - (1000 if kind == "stalled_client" else 0)
    values = [before] * 16 + ([after] if metric == "grad_norm" else [after] * 16)
    recent = [Point(n, n, n, at, True, {metric: value}) for n, value in enumerate(values, 1)]

    async def read(run: object) -> list[Point]:
        return recent

    monkeypatch.setattr(api.core.recorder, "recent", read)
    for path in ("now", f"runs/{model}"):
        (advice,) = (await get(api, path, None))["advice"]
        assert (advice["kind"], advice["run"], advice["tenant"]) == (kind, model, "alice")
    assert not (await get(api.as_tenant("tml-bob"), "now", shapes.Now))["advice"]
    assert (await get(api.as_tenant("tml-root"), "now", shapes.Now))["advice"] == [advice]


async def test_a_limit_that_is_reached_is_said_with_how_to_raise_it(tmp_path: Path) -> None:
    async with served(tmp_path, limits=Limits(runs_per_tenant=1)) as api:
        await api.model(await api.session())
        (advice,) = (await get(api, "now", shapes.Now))["advice"]
        assert advice["kind"] == "queue_limit"
        assert "--limit runs_per_tenant=" in advice["text"]


async def test_a_tenant_sees_its_own_and_an_operator_everything(api: Api, run: str) -> None:
    bob, root = api.as_tenant("tml-bob"), api.as_tenant("tml-root")
    for path in (f"runs/{run}", f"runs/{run}/history", f"samples?run={run}"):
        await get(bob, path, None, expect=404)
        await get(root, path, None)
    session = run.partition(":")[0]
    await get(bob, f"sessions/{session}/trace", None, expect=404)
    assert (await get(root, f"sessions/{session}/trace", None))["traceEvents"]
    start = (await get(root, "poll", shapes.Poll))["id"]
    await api.send("PUT", f"training_runs/{run}/name", json={"name": "secret"})
    await api.forward(run, 12)
    for path in ("runs", "checkpoints", "samples", "usage", "now", f"poll?after={start}"):
        assert "alice" not in str(await get(bob, path, None))
        assert run not in str(await get(bob, path, None))
        assert run in str(await get(root, path, None)) or path == "usage"
    assert (await get(root, "usage", shapes.Usage))["usage"][0]["tenant"] == "alice"
    assert (await get(root, "checkpoints", shapes.Checkpoints))["checkpoints"]
    assert (await get(root, "now", shapes.Now))["tenants"][0]["tenant"] == "alice"


async def test_a_poll_tells_what_happened_since(api: Api) -> None:
    start = (await get(api, "poll", shapes.Poll))["id"]
    model = await api.model(await api.session())
    await api.result((await api.forward(model, 1))["request_id"])
    await api.result((await api.step(model, 2))["request_id"])
    news = await get(api, f"poll?after={start}", shapes.Poll)
    kinds = [event["event"] for event in news["events"]]
    assert kinds == ["run", "point", "point"]
    assert [event["data"].get("done") for event in news["events"]] == [None, False, True]
    assert not (await get(api, f"poll?after={news['id']}", shapes.Poll))["events"]
    assert (await get(api, "poll?after=other-3", shapes.Poll))["reset"]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("runs?state=dead", "state"),
        ("runs?limit=x", "limit"),
        (f"runs?search={'x' * 300}", "search"),
        ("server/history?from=abc", "from"),
        ("server/history?from=nan", "from"),
        ("server/history?buckets=0", "buckets"),
        ("server/history?buckets=99999", "buckets"),
        (
            "server/history?metrics=" + ",".join("abc"[n % 3] * (n + 1) for n in range(65)),
            "metrics",
        ),
        ("samples?limit=1000", "limit"),
        ("usage?hours=1000", "hours"),
    ],
)
async def test_a_wrong_question_is_refused_by_name(api: Api, path: str, names: str) -> None:
    refused = await get(api, path, None, expect=422)
    assert refused["detail"].startswith(names)


async def test_without_a_key_there_is_nothing_to_see(api: Api) -> None:
    for path in ("now", "runs", "events", "poll", "samples", "usage", "server/history"):
        await get(api.as_tenant("tml-nobody"), path, None, expect=401)
