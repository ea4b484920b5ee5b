"""Promises of the session, usage, audit, tokenizer, metrics and streaming routes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.served import MODEL, Api, served


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with served(tmp_path / "home") as api:
        yield api


async def test_sessions_are_paged_searched_and_moved_between_projects(api: Api) -> None:
    made = []
    for number in range(3):
        body = {
            "tags": [],
            "user_metadata": {"n": str(number)},
            "display_name": f"Sweep {number}",
        }
        made.append((await api.post("create_session", body))["session_id"])
    newest = list(reversed(made))
    listed = (await api.send("GET", "sessions", params={"limit": 2})).json()["sessions"]
    assert listed == newest[:2]
    seen: list[str] = []
    cursor: Any = None
    for _ in range(3):
        body = {"display_name": "sweep", "limit": 1, "cursor": cursor}
        page = await api.post("sessions/search", body)
        seen += [each["session_id"] for each in page["sessions"]]
        cursor = page["next_cursor"]
    assert seen == newest
    assert (await api.post("sessions/search", {"limit": 1, "cursor": cursor}))["sessions"] == []
    await api.send("PUT", f"sessions/{made[0]}/project", json={"project_id": "p"})
    (found,) = (await api.post("sessions/search", {"project_ids": ["p"]}))["sessions"]
    assert (found["session_id"], found["status"]) == (made[0], {"type": "active"})


async def test_a_finished_session_is_found_by_its_reason(api: Api) -> None:
    session = await api.session()
    body = {"reason": {"type": "errored"}, "detail": "out of data"}
    await api.send("POST", f"sessions/{session}/finish", json=body)
    status = {"type": "client_finished", "reasons": ["errored"]}
    (found,) = (await api.post("sessions/search", {"statuses": [status]}))["sessions"]
    assert found["status"]["detail"] == "out of data"
    assert (await api.post("sessions/search", {"statuses": [{"type": "active"}]}))["sessions"] == []


async def test_usage_is_counted_per_session_and_seen_by_its_tenant_only(api: Api) -> None:
    session = await api.session()
    model = await api.model(session)
    await api.result((await api.forward(model, 1, length=5))["request_id"])
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    window = {
        "starting_on": hour.isoformat(),
        "ending_before": (hour + timedelta(hours=1)).isoformat(),
    }
    answer = (await api.send("GET", "billing/usage/events", params=window)).json()
    (event,) = [each for each in answer["data"] if each["event_info"]["type"] == "training"]
    assert event["event_info"]["token_count"] == 5
    assert (event["session_id"], event["base_model"]) == (session, MODEL)
    assert event["estimated_cost_usd"] is None
    other = await api.as_tenant("tml-bob").send("GET", "billing/usage/events", params=window)
    assert other.json()["data"] == []


async def test_a_window_of_odd_hours_or_over_two_weeks_is_refused(api: Api) -> None:
    for start, end in (
        ("2026-01-01T00:30:00Z", "2026-01-01T01:00:00Z"),
        ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"),
    ):
        window = {"starting_on": start, "ending_before": end}
        response = await api.send("GET", "billing/usage/events", params=window)
        assert response.status_code == 422


async def test_the_audit_log_tells_what_happened_to_a_checkpoint(api: Api) -> None:
    model = await api.model(await api.session())
    answer = await api.post("save_weights", {"model_id": model, "path": "a", "seq_id": 1})
    path = (await api.result(answer["request_id"]))["path"]
    await api.send("DELETE", f"training_runs/{model}/checkpoints/weights/a")
    entries = (await api.send("GET", "audit", params={"event_type": "checkpoints"})).json()
    events = [(entry["event"], entry["tinker_path"]) for entry in entries["entries"]]
    assert events == [("checkpoint.create", path), ("checkpoint.delete", path)]
    day = {"day": "2020-01-01"}
    assert (await api.send("GET", "audit", params=day)).json()["entries"] == []


async def test_a_deletion_whose_answer_got_lost_succeeds_when_it_is_sent_again(api: Api) -> None:
    model = await api.model(await api.session())
    answer = await api.post("save_weights", {"model_id": model, "path": "a", "seq_id": 1})
    await api.result(answer["request_id"])

    async def delete(key: str, who: Api = api) -> int:
        path, headers = f"training_runs/{model}/checkpoints/weights/a", {"x-idempotency-key": key}
        return (await who.send("DELETE", path, headers=headers)).status_code

    assert [await delete("one"), await delete("one")] == [200, 200]
    assert await delete("another") == 404
    assert await delete("one", api.as_tenant("tml-bob")) == 404


async def test_metrics_need_a_key_from_elsewhere_and_hold_no_secret(api: Api) -> None:
    await api.model(await api.session())
    response = await api.client.get("/metrics", headers={"x-api-key": api.key})
    assert response.status_code == 200
    assert 'tinkex_requests_total{route="/api/v1/create_model",status="200"} 1' in response.text
    assert "tinkex_runs_live 1" in response.text
    for secret in (api.key, "key-", "train:0"):
        assert secret not in response.text


async def test_tokens_are_streamed_before_the_whole_result(api: Api) -> None:
    session = await api.session()
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = (await api.post("create_sampling_session", body))["sampling_session_id"]
    sample = {
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 3},
        "sampling_session_id": sampler,
        "seq_id": 0,
    }
    response = await api.send("POST", "asample_stream", json=sample)
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert lines[0]["type"] == "start"
    assert len(lines[0]["sample_sequence_ids"]) == 1
    assert lines[-1]["type"] == "done"
    trace = (await api.send("GET", f"sessions/{session}/trace_export")).json()["url"]
    events = (await api.client.get(trace)).json()["traceEvents"]
    assert {"asample", "wait", "run"} <= {event["name"] for event in events}


@pytest.mark.parametrize(
    ("method", "path", "request_"),
    [
        ("GET", "sessions", {"params": {"limit": "9" * 5000}}),
        ("GET", "training_runs", {"params": {"offset": "1" * 5000}}),
        (
            "GET",
            "billing/usage/events",
            {
                "params": dict.fromkeys(
                    ("starting_on", "ending_before"), "0001-01-01T00:00:00+14:00"
                )
            },
        ),
        ("POST", "sessions/search", {"json": {"statuses": [{"type": []}]}}),
        ("POST", "sessions/search", {"json": {"owner": {"type": {}}}}),
        (
            "POST",
            "sessions/search",
            {
                "json": {
                    "cursor": {
                        "last_created_at": "0001-01-01T00:00:00+14:00",
                        "last_session_id": "",
                    }
                }
            },
        ),
        ("POST", "retrieve_future", {"content": rb'{"request_id":"\ud800"}'}),
        ("POST", "create_session", {"content": b'{"user_metadata":{"a":1e999}}'}),
    ],
)
async def test_odd_values_are_refused_not_a_failure(
    api: Api, method: str, path: str, request_: dict[str, Any]
) -> None:
    response = await api.send(method, path, **request_)
    assert response.status_code == 422, response.text


async def test_the_last_sample_number_that_is_taken_can_be_stored(api: Api) -> None:
    session = await api.session()
    asked = {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = (await api.post("create_sampling_session", asked))["sampling_session_id"]
    body = {"sampling_session_id": sampler, "prompt": {"chunks": [{"tokens": [1]}]}}
    await api.post("asample", {**body, "seq_id": 2**62})
    await api.post("asample", {**body, "seq_id": 2**62 + 1}, expect=422)
