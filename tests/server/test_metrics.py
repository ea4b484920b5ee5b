"""Promises of the Prometheus page."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from support.served import served
from tinkex.server.http.prometheus import Page
from tinkex.server.http.request_counts import Requests


async def asked(request: Request) -> Response:
    return Response()


ROUTE = Route("/x", asked)


def page(requests: Requests) -> str:
    return Page(requests, []).text().decode()


def test_requests_are_counted_by_route_and_status() -> None:
    requests = Requests([ROUTE])
    for status in (200, 200, 404):
        requests.observe({"endpoint": asked}, status, 0.3)
    requests.observe({}, 404, 0.3)
    lines = page(requests).splitlines()
    assert "# HELP tinkex_requests_total Requests answered." in lines
    assert "# TYPE tinkex_requests_total counter" in lines
    assert [line for line in lines if line.startswith("tinkex_requests_total{")] == [
        'tinkex_requests_total{route="/x",status="200"} 2.0',
        'tinkex_requests_total{route="/x",status="404"} 1.0',
        'tinkex_requests_total{route="other",status="404"} 1.0',
    ]


def test_a_histogram_counts_every_observation_up_to_each_bound() -> None:
    requests = Requests([ROUTE])
    for seconds in (0.0005, 0.001, 0.3, 99.0):
        requests.observe({"endpoint": asked}, 200, seconds)
    text = page(requests)
    for bound, count in (("0.001", 2), ("0.25", 2), ("0.5", 3), ("60.0", 3), ("+Inf", 4)):
        assert f'tinkex_request_seconds_bucket{{le="{bound}",route="/x"}} {count}.0\n' in text
    assert 'tinkex_request_seconds_count{route="/x"} 4.0\n' in text


def test_nothing_reaches_the_metrics_of_the_program_around_a_server() -> None:
    before = {family.name for family in REGISTRY.collect()}
    first, second = Requests([ROUTE]), Requests([ROUTE])
    first.was_cut("slow_reader")
    assert 'tinkex_connections_cut_total{reason="slow_reader"} 1.0' in page(first)
    assert 'tinkex_connections_cut_total{reason="slow_reader"} 0.0' in page(second)
    assert {family.name for family in REGISTRY.collect()} == before


async def test_every_name_stands_once_and_no_birthdays_do(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        await api.model(await api.session())
        text = (await api.client.get("/metrics", headers={"x-api-key": api.key})).text
    names = [family.name for family in text_string_to_metric_families(text)]
    assert len(names) == len(set(names)) > 25
    assert "_created" not in text


async def test_an_object_store_is_watched_where_there_is_one(tmp_path: Path) -> None:
    async with served(tmp_path / "home", objects=f"file://{tmp_path / 'store'}") as api:
        model = await api.model(await api.session())
        body = {"model_id": model, "seq_id": 1, "path": "kept"}
        await api.result((await api.post("save_weights", body))["request_id"])
        text = (await api.client.get("/metrics", headers={"x-api-key": api.key})).text
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["tinkex_object_store_up",] == 1
    assert samples["tinkex_object_store_requests_total", "answered"] > 0
    assert samples["tinkex_object_store_bytes_total", "sent"] > 0
    assert samples["tinkex_object_cache_bytes",] > 0
