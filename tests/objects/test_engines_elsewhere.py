"""Engines away from the server: weights come to them straight from the store, or by the server.

The engine is a fake; what is tried is who fetches what, from a server whose cache is empty.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.fake_engine import READY, FakeEngine, Refused, read_folder, read_state
from support.object_service import BUCKET, ObjectService
from support.served import Api, served
from tinkex.engine.messages import LoadRun, LoadWeights, WeightsRef
from tinkex.server.engines import loaded_weights
from tinkex.server.settings import Scheduling
from tinkex.server.storage.objects import store as store_module
from tinkex.wire.protobuf import decode_sample_response

WEIGHTS_FILE = "adapter_model.safetensors"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_RETRY", {"max_retries": 0})
    monkeypatch.setattr(store_module, "_PAUSE_S", 0.05)
    monkeypatch.setattr(loaded_weights, "_PAUSE_S", 0.01)


def by_links(ref: WeightsRef) -> list[str]:
    """As an engine reads that sees no folder of the server's; what comes over Ray has no links."""
    if not ref.files:
        return read_folder(ref)
    (link,) = [link for link in ref.files if link.name == WEIGHTS_FILE]
    with urllib.request.urlopen(link.url) as answer:
        return read_state(answer.read())


def cut_off_from_the_store(ref: WeightsRef) -> list[str]:
    if ref.files:
        raise Refused("lost", f"{WEIGHTS_FILE} could not be fetched: no route to host")
    return read_folder(ref)


def engine(read: Any, is_away: bool) -> FakeEngine:
    made = FakeEngine()
    made.read, made.ready = read, replace(READY, is_away=is_away)
    return made


@asynccontextmanager
async def emptied(
    service: ObjectService, home: Path, fake: FakeEngine
) -> AsyncIterator[tuple[Api, str, Path]]:
    """A server with saved weights, the last of their path, and a cache that lacks them; and where
    the weights lie in the store."""
    prefix = secrets.token_hex(4)
    async with served(home, objects=f"s3://{BUCKET}/{prefix}") as api:
        model = await api.model(await api.session())
        await api.result((await api.step(model, 1))["request_id"])
        body = {"model_id": model, "seq_id": 2, "path": "kept"}
        saved = await api.result((await api.post("save_weights_for_sampler", body))["request_id"])
        await api.on_disk()
    shutil.rmtree(home / "cache")
    (stored,) = (service.folder / BUCKET / prefix / "weights").glob(f"*/*/{WEIGHTS_FILE}")
    async with served(home, fake) as api:
        yield api, saved["path"], stored


async def sampler_of(api: Api, path: str, expect: int = 200) -> Any:
    body = {"session_id": await api.session(), "sampling_session_seq_id": 0, "model_path": path}
    answer = await api.post("create_sampling_session", body, expect)
    return answer.get("sampling_session_id", answer)


async def sample(api: Api, sampler: str) -> Any:
    """What a sample ends with."""
    body = {
        "sampling_session_id": sampler,
        "seq_id": 1,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 2},
    }
    answer = await api.post("asample", body)
    found = await api.result(answer["request_id"])
    if isinstance(found, dict):
        return found
    return decode_sample_response(found, answer["sample_sequence_ids"])


async def steps_of(api: Api, sampler: str) -> int:
    """How much was applied to the weights that were sampled from, as the fake draws it."""
    return int((await sample(api, sampler)).sequences[0].tokens[0])


def references(fake: FakeEngine) -> list[WeightsRef]:
    """All that the engine was told to load."""
    return [seen.source for seen in fake.current.seen if isinstance(seen, LoadWeights)]


def bytes_received(api: Api) -> int:
    assert api.core.storage.remote is not None
    return api.core.storage.remote.objects.traffic.bytes["received"]


async def test_an_engine_elsewhere_gets_weights_from_the_store_and_the_server_does_not_fetch_them(
    service: ObjectService, tmp_path: Path
) -> None:
    fake = engine(by_links, is_away=True)
    async with emptied(service, tmp_path, fake) as (api, path, _):
        assert await steps_of(api, await sampler_of(api, path)) == 2, "created, and a step"
        (ref,) = references(fake)
        assert {link.name for link in ref.files} == {"adapter_config.json", WEIGHTS_FILE}
        assert not Path(ref.path).exists()
        assert bytes_received(api) < 3 * 1024, "lists of files"


async def test_an_engine_that_cannot_reach_the_store_gets_weights_through_the_server(
    service: ObjectService, tmp_path: Path
) -> None:
    fake = engine(cut_off_from_the_store, is_away=True)
    async with emptied(service, tmp_path, fake) as (api, path, _):
        assert await steps_of(api, await sampler_of(api, path)) == 2
        first, second = references(fake)
        assert first.files
        assert not second.files
        assert Path(second.path).is_dir()


async def test_of_weights_that_never_come_within_reach_the_client_is_told_after_a_while(
    service: ObjectService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(_: WeightsRef) -> list[str]:
        raise Refused("lost", "no route to host")

    monkeypatch.setattr(loaded_weights, "_TRIES", 3)
    fake = engine(cut_off, is_away=True)
    async with emptied(service, tmp_path, fake) as (api, path, _):
        ended = await sample(api, await sampler_of(api, path))
        assert "could not get the weights of this sampler: no route to host" in ended["error"]
        assert len(references(fake)) == 3


async def test_an_engine_beside_the_server_reads_what_the_cache_got_once(
    service: ObjectService, tmp_path: Path
) -> None:
    fake = engine(read_folder, is_away=False)
    async with emptied(service, tmp_path, fake) as (api, path, _):
        sampler = await sampler_of(api, path)
        assert list((tmp_path / "cache" / "weights").iterdir()) == [], "nobody has needed them yet"
        assert await steps_of(api, sampler) == 2
        (ref,) = references(fake)
        assert Path(ref.path).is_dir()


@pytest.mark.parametrize("is_away", [False, True])
async def test_weights_that_the_store_has_damaged_are_not_sampled_and_the_client_hears_why(
    service: ObjectService, tmp_path: Path, is_away: bool
) -> None:
    """An engine elsewhere finds other bytes and says that it could not get them."""
    fake = engine(cut_off_from_the_store if is_away else read_folder, is_away)
    async with emptied(service, tmp_path, fake) as (api, path, stored):
        stored.write_bytes(b"X" + stored.read_bytes()[1:])
        ended = await sample(api, await sampler_of(api, path))
        assert f"{WEIGHTS_FILE} is not the one that was saved" in ended["error"]


async def test_a_checkpoint_that_lacks_bytes_in_the_store_makes_no_sampler(
    service: ObjectService, tmp_path: Path
) -> None:
    async with emptied(service, tmp_path, FakeEngine()) as (api, path, stored):
        whole = stored.read_bytes()
        stored.write_bytes(whole[:-1])
        refused = await sampler_of(api, path, expect=422)
        assert f"{WEIGHTS_FILE} has {len(whole) - 1} bytes, {len(whole)} were saved" in str(refused)


@asynccontextmanager
async def restored(
    service: ObjectService, home: Path, fake: FakeEngine, *, keep_cache: bool = False
) -> AsyncIterator[tuple[Api, str, Path]]:
    """A server begun again with a run in a snapshot of the store, and where that lies there."""
    prefix, often = secrets.token_hex(4), Scheduling(snapshot_steps=1)
    async with served(home, objects=f"s3://{BUCKET}/{prefix}", scheduling=often) as api:
        model = await api.model(await api.session())
        await api.result((await api.step(model, 1))["request_id"])
        run = api.core.runs.find(model)
        assert run is not None
        while run.snapshot is None:
            await asyncio.sleep(0.01)
    if not keep_cache:
        shutil.rmtree(home / "cache")
    (stored,) = (service.folder / BUCKET / prefix / "snapshots").glob(f"*/*/{WEIGHTS_FILE}")
    async with served(home, fake) as api:
        yield api, model, stored


def brought(fake: FakeEngine) -> list[WeightsRef]:
    return [seen.source for seen in fake.current.seen if isinstance(seen, LoadRun)]


async def test_a_run_comes_back_elsewhere_from_the_store_and_the_server_does_not_fetch_it(
    service: ObjectService, tmp_path: Path
) -> None:
    fake = engine(by_links, is_away=True)
    async with restored(service, tmp_path, fake) as (api, model, _):
        await api.result((await api.step(model, 2))["request_id"])
        (ref,) = brought(fake)
        assert ref.files
        assert not Path(ref.path).exists()
        assert len(api.applied(model)) == 2


@pytest.mark.parametrize("keep_cache", [False, True])
async def test_a_run_comes_back_through_the_server_where_the_engine_cannot_reach_the_store(
    service: ObjectService, tmp_path: Path, keep_cache: bool
) -> None:
    fake = engine(cut_off_from_the_store, is_away=True)
    async with restored(service, tmp_path, fake, keep_cache=keep_cache) as (api, model, _):
        await api.result((await api.step(model, 2))["request_id"])
        assert not brought(fake)[-1].files
        assert len(api.applied(model)) == 2


async def test_a_snapshot_that_the_store_has_damaged_is_given_up_for_the_one_before(
    service: ObjectService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake = engine(cut_off_from_the_store, is_away=True)
    async with restored(service, tmp_path, fake) as (api, model, stored):
        stored.write_bytes(b"X" + stored.read_bytes()[1:])
        await api.result((await api.step(model, 2))["request_id"])
        assert len(api.applied(model)) == 2
        assert "going back to its beginning" in caplog.text
