"""Bad input: refused or failed by name, and nothing changed by it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from support.served import MODEL, forward_body, served
from tinkex.server.settings import Limits

PROTOBUF = {"content-type": "application/x-protobuf"}


@pytest.mark.parametrize("body", [b"", b"\x00", b"garbage" * 100, b"\xff" * 64, b"\x0a\x7f"])
async def test_bytes_that_name_no_run_are_refused(tmp_path: Path, body: bytes) -> None:
    async with served(tmp_path) as api:
        response = await api.send("POST", "forward_backward", content=body, headers=PROTOBUF)
        assert response.status_code == 422
        assert response.json()["detail"]
        assert int(response.headers["content-length"]) > 0


async def test_a_cut_or_spoilt_body_fails_its_future_and_the_run_goes_on(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        whole = forward_body(model, 1, length=50)
        await api.forward(model, 1, content=whole[: len(whole) // 2])
        spoilt = forward_body(model, 2)
        await api.forward(model, 2, content=spoilt + b"\x1a\x02\xff\xff")
        empty = forward_body(model, 3).replace(b"cross_entropy", b"")
        await api.forward(model, 3, content=empty)
        await api.forward(model, 4, first=4)
        for seq in (1, 2, 3):
            failed = await api.result(f"{model}:{seq}")
            assert failed["category"] == "user", failed
        await api.result(f"{model}:4")
        assert api.applied(model) == ["forward:4"]


async def test_a_zstd_body_is_read_and_a_bomb_is_not(tmp_path: Path) -> None:
    async with served(tmp_path, limits=Limits(decompressed_bytes=1_000_000)) as api:
        model = await api.model(await api.session())
        packed = {**PROTOBUF, "content-encoding": "zstd"}
        good = zstandard.compress(forward_body(model, 1))
        response = await api.send("POST", "forward_backward", content=good, headers=packed)
        assert response.status_code == 200
        bomb = zstandard.compress(bytes(50_000_000))
        response = await api.send("POST", "forward_backward", content=bomb, headers=packed)
        assert response.status_code == 413
        response = await api.send("POST", "forward_backward", content=b"nonsense", headers=packed)
        assert response.status_code == 422
        odd = {**PROTOBUF, "content-encoding": "br"}
        response = await api.send("POST", "forward_backward", content=good, headers=odd)
        assert response.status_code == 422


async def test_a_body_that_claims_or_has_too_much_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path, limits=Limits(body_bytes=10_000, json_body_bytes=10_000)) as api:
        claims = {**PROTOBUF, "content-length": str(2 << 30)}
        response = await api.send("POST", "forward_backward", content=b"x", headers=claims)
        assert response.status_code == 413

        async def endless() -> Any:
            for _ in range(100):
                yield b"x" * 1000

        response = await api.send("POST", "forward_backward", content=endless(), headers=PROTOBUF)
        assert response.status_code == 413
        response = await api.send("POST", "asample", content=b'"' + b"x" * 20_000 + b'"')
        assert response.status_code == 413


async def test_a_body_that_never_ends_is_given_up(tmp_path: Path) -> None:
    async with served(tmp_path, limits=Limits(body_timeout_s=0.05)) as api:

        async def stalled() -> Any:
            yield b"x"
            await asyncio.sleep(5)

        response = await api.send("POST", "create_session", content=stalled())
        assert response.status_code == 422
        assert "0 s" in response.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"nan", b'{"session_id": NaN}', b"\xff\xfe", b"[" * 100_000, b'"x"', b"{}"],
)
@pytest.mark.parametrize(
    "path", ["create_model", "optim_step", "asample", "retrieve_future", "retrieve_futures"]
)
async def test_json_that_is_none_or_lacks_fields_is_refused(
    tmp_path: Path, path: str, body: bytes
) -> None:
    async with served(tmp_path) as api:
        response = await api.send("POST", path, content=body)
        assert response.status_code == 422, response.text
        assert response.json()["detail"]


async def test_what_a_model_cannot_be_is_refused_by_field(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        body: dict[str, Any] = {
            "session_id": await api.session(),
            "model_seq_id": 0,
            "base_model": MODEL,
            "lora_config": {"rank": 8},
        }
        wrong = {
            "base_model": {"base_model": "someone/elses"},
            "rank": {"lora_config": {"rank": 0}},
            "lora_config.rank": {"lora_config": {"rank": 1_000_000}},
            "lora_config": {"lora_config": None},
            "optimizer_config": {"optimizer_config": {"type": "sgd"}},
            "lora_config.alpha": {"lora_config": {"rank": 8, "alpha": 3}},
            "learning_rate": {"learning_rate": 3},
            "trains nothing": {
                "lora_config": {
                    "rank": 8,
                    "train_attn": False,
                    "train_mlp": False,
                    "train_unembed": False,
                }
            },
        }
        for named, change in wrong.items():
            refused = await api.post("create_model", {**body, **change}, expect=422)
            assert named in refused["detail"]
        assert list(api.core.runs) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"adam_params": {"learning_rate": -1}}, "adam_params.learning_rate"),
        ({"adam_params": {"learning_rate": "fast"}}, "adam_params.learning_rate"),
        ({"adam_params": {"beta1": 1.0}}, "adam_params.beta1"),
        ({"adam_params": {"momentum": 0.9}}, "adam_params.momentum"),
        ({"adam_params": {}, "clip": 1}, "clip"),
        ({}, "adam_params"),
        ({"optimizer_params": {"type": "dimuon", "learning_rate": 0.1}}, "dimuon"),
    ],
)
async def test_a_step_that_cannot_be_taken_fails_by_field(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        answer = await api.post("optim_step", {"model_id": model, "seq_id": 1, **change})
        failed = await api.result(answer["request_id"])
        assert failed["category"] == "user"
        assert named in failed["error"]
        assert api.applied(model) == []


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "../../etc", "näme", "a b", "x" * 500, ".hidden"]
)
async def test_names_that_could_leave_their_place_fail_the_save(tmp_path: Path, name: str) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        body = {"model_id": model, "seq_id": 1, "path": name, "type": "save_weights"}
        answer = await api.post("save_weights", body)
        assert (await api.result(answer["request_id"]))["category"] == "user"
        assert not list((tmp_path / "weights").iterdir())


async def test_a_taken_name_fails_the_save_and_keeps_the_first(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        for seq in (1, 2):
            await api.post("save_weights", {"model_id": model, "seq_id": seq, "path": "same"})
        assert "path" in await api.result(f"{model}:1")
        assert (await api.result(f"{model}:2"))["category"] == "user"
        again = {"model_id": model, "seq_id": 3, "path": "same", "overwrite": True}
        await api.post("save_weights", again)
        assert "path" in await api.result(f"{model}:3")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"num_samples": 10**9}, "num_samples"),
        ({"num_samples": True}, "num_samples"),
        ({"seq_id": -1}, "seq_id"),
        ({"seq_id": 2**64}, "seq_id"),
        ({"prompt": {"chunks": []}}, "prompt"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [-1]}]}}, "tokens"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [2**31]}]}}, "tokens"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [1.5]}]}}, "tokens"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": ["a"]}]}}, "tokens"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [[1]]}]}}, "tokens"),
        ({"prompt": {"chunks": [{"type": "image", "data": "", "format": "png"}]}}, "image"),
        ({"prompt": {"chunks": [7]}}, "chunks[0]"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"top_p": 2}}, "top_p"),
        ({"sampling_params": {"stop": [1, "a"]}}, "stop"),
        ({"sampling_params": {"min_p": 0.1}}, "min_p"),
        ({"logit_bias": {}}, "logit_bias"),
        ({"target_prompt_logprobs": {"data": [1], "dtype": "int64", "shape": [9, 9]}}, "shape"),
    ],
)
async def test_a_sample_that_cannot_be_taken_is_refused_by_field(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        made = await api.post(
            "create_sampling_session",
            {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL},
        )
        body = {
            "sampling_session_id": made["sampling_session_id"],
            "seq_id": 0,
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
            "sampling_params": {},
        }
        refused = await api.post("asample", {**body, **change}, expect=422)
        assert named in refused["detail"]
        assert api.core.sampling.in_flight() == 0


async def test_keys_are_asked_for_everywhere_but_at_the_door(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        for key in ("", "secret", "tml", "x" * 10_000):
            response = await api.as_tenant(key).send("POST", "create_session", json={})
            assert response.status_code == 401
            assert "secret" not in response.text
        await next(iter(api.core.engines)).ready()
        assert (await api.as_tenant("").send("GET", "healthz")).status_code == 200


async def test_configured_keys_are_the_only_ones(tmp_path: Path) -> None:
    from tinkex.server.tenancy.tenants import hash_key

    async with served(tmp_path, keys={hash_key("tml-good"): "team"}) as api:
        assert (
            await api.as_tenant("tml-bad").send("POST", "create_session", json={})
        ).status_code == 401
        response = await api.as_tenant("tml-good").send("POST", "create_session", json={})
        assert response.status_code == 200


async def test_another_tenants_ids_are_nobodys(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        model = await api.model(session)
        await api.forward(model, 1)
        await api.post("save_weights", {"model_id": model, "seq_id": 2, "path": "mine"})
        path = (await api.result(f"{model}:2"))["path"]
        made = await api.post(
            "create_sampling_session",
            {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL},
        )
        sampler = made["sampling_session_id"]
        eve = api.as_tenant("tml-eve")
        own = await eve.session()
        await eve.post("session_heartbeat", {"session_id": session}, expect=404)
        await eve.post(f"sessions/{session}/finish", {"reason": {"type": "success"}}, expect=404)
        await eve.forward(model, 2, expect=404)
        await eve.step(model, 2, expect=404)
        await eve.post("get_info", {"model_id": model}, expect=404)
        await eve.post("retrieve_future", {"request_id": f"{model}:1"}, expect=404)
        await eve.post("join_sampling_session", {"sampling_session_id": sampler}, expect=404)
        await eve.post(
            "create_sampling_session",
            {"session_id": own, "sampling_session_seq_id": 0, "model_path": path},
            expect=404,
        )
        load = {"session_id": own, "model_seq_id": 0, "path": path, "optimizer": True}
        await eve.post("load_weights", load, expect=404)
        body = {
            "sampling_session_id": sampler,
            "seq_id": 0,
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
        }
        await eve.post("asample", body, expect=404)
        target = {
            "type": "sampling_session",
            "sampling_session_id": sampler,
            "cloned_sampler_id": 0,
        }
        await eve.post("retrieve_futures", {"target": target, "prev_cursor": 0}, expect=404)
        mine = await eve.model(own)
        answer = await eve.post(
            "load_weights", {"model_id": mine, "seq_id": 1, "path": path, "optimizer": False}
        )
        assert "no checkpoint" in (await eve.result(answer["request_id"]))["error"]
        assert api.applied(model) == ["forward:1"]


async def test_unknown_paths_and_methods_have_the_usual_shape(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        response = await api.send("GET", "no/such/thing")
        assert (response.status_code, list(response.json())) == (404, ["detail"])
        assert (await api.send("GET", "create_session")).status_code == 405


async def test_telemetry_is_accepted_and_never_kept(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        body = {"events": [{"event_data": {"request_headers": {"x-api-key": "tml-leaky"}}}]}
        assert await api.post("telemetry", body) == {"status": "accepted"}
        assert (await api.send("POST", "telemetry", content=b"\xff" * 100)).status_code == 200
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"tml-leaky" not in path.read_bytes()


async def test_keys_never_reach_the_disk(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.post("save_weights", {"model_id": model, "seq_id": 1, "path": "mine"})
        path = (await api.result(f"{model}:1"))["path"]
        body = {"model_id": model, "seq_id": 2, "path": path, "optimizer": True}
        await api.post("load_weights", {**body, "weights_access_token": "tml-foreign"})
        assert json.dumps(await api.result(f"{model}:2"))
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"tml-alice" not in file.read_bytes()
            assert b"tml-foreign" not in file.read_bytes()
