"""Promises of links and what they lead to."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from support.served import Api, served


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with served(tmp_path / "home") as api:
        yield api


async def export(api: Api, kind: str = "save_weights_external") -> str:
    model = await api.model(await api.session())
    answer = await api.post(kind, {"model_id": model, "path": "out", "seq_id": 1})
    return str((await api.result(answer["request_id"]))["path"])


async def links(api: Api, path: str) -> dict[str, str]:
    run, _, checkpoint = path.removeprefix("tinker://").partition("/")
    route = f"training_runs/{run}/checkpoints/{checkpoint}/external_weights_urls"
    found: dict[str, str] = (await api.send("GET", route)).json()["urls"]
    return found


async def fetch(api: Api, url: str, **headers: str) -> httpx.Response:
    """Follow a link the way anyone could: without a key."""
    parts = urlsplit(url)
    return await api.client.get(f"{parts.path}?{parts.query}", headers=headers)


async def test_a_link_gives_the_file_without_a_key_and_says_its_digest(api: Api) -> None:
    urls = await links(api, await export(api))
    assert set(urls) == {"adapter_config.json", "adapter_model.safetensors"}
    response = await fetch(api, urls["adapter_config.json"])
    assert response.status_code == 200
    digest = hashlib.sha256(response.content).hexdigest()
    assert response.headers["etag"] == f'"sha256-{digest}"'
    assert response.headers["repr-digest"].startswith("sha-256=:")


async def test_a_download_can_be_continued_if_the_file_is_still_the_same(api: Api) -> None:
    url = (await links(api, await export(api)))["adapter_config.json"]
    whole = await fetch(api, url)
    etag = whole.headers["etag"]
    rest = await fetch(api, url, range="bytes=3-", **{"if-range": etag})
    assert (rest.status_code, rest.content) == (206, whole.content[3:])
    other = await fetch(api, url, range="bytes=3-", **{"if-range": '"other"'})
    assert (other.status_code, other.content) == (200, whole.content)


async def test_a_link_opens_nothing_but_what_it_was_made_for(api: Api) -> None:
    urls = await links(api, await export(api))
    url = urls["adapter_config.json"]
    for wrong in (
        url.replace("adapter_config.json", "adapter_model.safetensors"),
        url.replace("adapter_config.json", "%2e%2e/%2e%2e/tinkex.db"),
        url.replace("expires=", "expires=9"),
        url.replace("/out/", "/other/"),
        url.partition("?")[0],
        url.replace("tenant=", "tenant=x"),
    ):
        response = await fetch(api, wrong)
        assert response.status_code in (403, 404), wrong
        assert "detail" in response.json()


async def test_a_link_ends_with_its_checkpoint(api: Api) -> None:
    path = await export(api)
    url = (await links(api, path))["adapter_config.json"]
    run, _, checkpoint = path.removeprefix("tinker://").partition("/")
    await api.send("DELETE", f"training_runs/{run}/checkpoints/{checkpoint}")
    assert (await fetch(api, url)).status_code == 404


@pytest.mark.parametrize("kind", ["save_weights", "save_weights_for_sampler"])
async def test_every_kind_of_checkpoint_is_served_as_an_archive(api: Api, kind: str) -> None:
    path = await export(api, kind)
    run, _, checkpoint = path.removeprefix("tinker://").partition("/")
    answer = await api.send("GET", f"training_runs/{run}/checkpoints/{checkpoint}/archive")
    response = await fetch(api, answer.json()["url"])
    assert int(response.headers["content-length"]) == len(response.content)
    with tarfile.open(fileobj=io.BytesIO(response.content)) as tar:
        assert {"adapter_config.json", "manifest.json"} <= set(tar.getnames())
    urls = await api.send(
        "GET", f"training_runs/{run}/checkpoints/{checkpoint}/external_weights_urls"
    )
    assert urls.status_code == 422


async def test_a_session_trace_shows_its_requests(api: Api) -> None:
    session = await api.session()
    model = await api.model(session)
    await api.result((await api.forward(model, 1))["request_id"])
    answer = (await api.send("GET", f"sessions/{session}/trace_export")).json()
    assert answer["status"] == "ready"
    events = (await fetch(api, answer["url"])).json()["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "b"}
    assert {"create_model", "forward_backward"} <= names


async def test_an_archive_can_be_continued_where_it_broke_off(api: Api) -> None:
    """As a file: the rest if it is still the same, the whole if not, a refusal behind the end."""
    run, _, checkpoint = (await export(api)).removeprefix("tinker://").partition("/")
    answer = await api.send("GET", f"training_runs/{run}/checkpoints/{checkpoint}/archive")
    url = answer.json()["url"]
    whole = await fetch(api, url)
    etag, size = whole.headers["etag"], len(whole.content)
    assert whole.headers["accept-ranges"] == "bytes"
    rest = await fetch(api, url, range="bytes=700-", **{"if-range": etag})
    assert (rest.status_code, rest.content) == (206, whole.content[700:])
    assert rest.headers["content-range"] == f"bytes 700-{size - 1}/{size}"
    assert rest.headers["content-length"] == str(size - 700)
    other = await fetch(api, url, range="bytes=700-", **{"if-range": '"other"'})
    assert (other.status_code, other.content) == (200, whole.content)
    behind = await fetch(api, url, range=f"bytes={size}-")
    assert (behind.status_code, behind.headers["content-range"]) == (416, f"bytes */{size}")
