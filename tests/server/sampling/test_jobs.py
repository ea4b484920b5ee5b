"""Samples: pinned weights, once each, cancelled, kept, lost honestly, within limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from support.fake_engine import FakeEngine
from support.served import MODEL, Api, served
from tinkex.server.settings import Limits
from tinkex.wire.protobuf import decode_sample_response


async def _sampler(api: Api, session: str, number: int = 0, **weights: str) -> str:
    body = {"session_id": session, "sampling_session_seq_id": number}
    answer = await api.post(
        "create_sampling_session", {**body, **(weights or {"base_model": MODEL})}
    )
    return str(answer["sampling_session_id"])


def _body(sampler: str, seq: int, max_tokens: int = 2, num_samples: int = 1) -> dict[str, Any]:
    return {
        "sampling_session_id": sampler,
        "seq_id": seq,
        "num_samples": num_samples,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": max_tokens, "temperature": 0.5},
        "prompt_logprobs": False,
        "type": "sample",
    }


async def _tokens(api: Api, answer: dict[str, Any]) -> list[list[int]]:
    body = await api.result(answer["request_id"])
    response = decode_sample_response(body, answer["sample_sequence_ids"])
    return [list(sequence.tokens) for sequence in response.sequences]


async def test_a_sampler_serves_the_weights_it_was_made_from(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        model = await api.model(session)
        await api.forward(model, 1)
        saved = await api.post(
            "save_weights_for_sampler", {"model_id": model, "seq_id": 2, "path": "one"}
        )
        path = (await api.result(saved["request_id"]))["path"]
        old = await _sampler(api, session, 0, model_path=path)
        await api.step(model, 3)
        nameless = await api.post(
            "save_weights_for_sampler",
            {"model_id": model, "seq_id": 4, "sampling_session_seq_id": 1},
        )
        new = (await api.result(nameless["request_id"]))["sampling_session_id"]
        assert await _tokens(api, await api.post("asample", _body(old, 0))) == [[2, 3]]
        assert await _tokens(api, await api.post("asample", _body(new, 0))) == [[3, 3]]
        assert api.applied(model) == ["forward:1", "step:0.1"]


async def test_a_nameless_save_retried_with_another_sampler_number_is_the_same(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        body = {"model_id": model, "seq_id": 1}
        first = await api.post("save_weights_for_sampler", {**body, "sampling_session_seq_id": 5})
        again = await api.post("save_weights_for_sampler", {**body, "sampling_session_seq_id": 6})
        assert first == again
        assert (await api.result(first["request_id"]))["sampling_session_id"].endswith(":sample:5")


async def test_the_same_number_is_the_same_sample_and_another_body_is_refused(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as api:
        sampler = await _sampler(api, await api.session())
        first = await api.post("asample", _body(sampler, 7, num_samples=3))
        again = await api.post("asample", _body(sampler, 7, num_samples=3))
        assert first == again
        assert len(set(first["sample_sequence_ids"])) == 3
        await api.post("asample", _body(sampler, 7, num_samples=2), expect=422)
        assert len(await _tokens(api, first)) == 3


async def test_numbers_beyond_doubles_keep_their_identity(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        sampler = await _sampler(api, await api.session())
        numbers = [10**18 + 1, 10**18 + 2]
        answers = [await api.post("asample", _body(sampler, number)) for number in numbers]
        assert [answer["request_id"].rpartition(":")[2] for answer in answers] == [
            str(number) for number in numbers
        ]


async def test_a_cancelled_sample_fails_and_frees_the_engine(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        sampler = await _sampler(api, await api.session())
        answer = await api.post("asample", _body(sampler, 0, max_tokens=999))
        while not api.engine.current.held:
            await asyncio.sleep(0.01)
        await api.post("cancel_future", {"request_id": answer["request_id"]})
        assert (await api.result(answer["request_id"]))["error"] == "cancelled"
        assert api.engine.current.held == []
        assert api.core.sampling.in_flight() == 0


async def test_samples_in_flight_when_the_engine_dies_are_sent_again(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        model = await api.model(session)
        saved = await api.post(
            "save_weights_for_sampler", {"model_id": model, "seq_id": 1, "path": "w"}
        )
        path = (await api.result(saved["request_id"]))["path"]
        sampler = await _sampler(api, session, 0, model_path=path)
        answer = await api.post("asample", _body(sampler, 0, max_tokens=999))
        while not api.engine.current.held:
            await asyncio.sleep(0.01)
        api.engine.current.die()
        while len(api.engine.workers) < 2 or not api.engine.current.held:
            await asyncio.sleep(0.01)
        await api.post("cancel_future", {"request_id": answer["request_id"]})
        assert (await api.result(answer["request_id"]))["category"] == "user"


async def test_engine_errors_are_failed_futures(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        sampler = await _sampler(api, await api.session())
        answer = await api.post("asample", _body(sampler, 0, max_tokens=666))
        failed = await api.result(answer["request_id"])
        assert failed == {"error": "max_tokens is unlucky", "category": "user"}


async def test_batch_polls_deliver_each_end_and_take_acknowledgements(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        sampler = await _sampler(api, await api.session())
        target = {
            "type": "sampling_session",
            "sampling_session_id": sampler,
            "cloned_sampler_id": 0,
        }
        waiting = asyncio.create_task(
            api.post("retrieve_futures", {"target": target, "prev_cursor": 0})
        )
        await asyncio.sleep(0.01)
        first = await api.post("asample", _body(sampler, 0))
        answer = await waiting
        assert [end["request_id"] for end in answer["completions"]] == [first["request_id"]]
        assert answer["completions"][0]["state"] == "finished"
        await _tokens(api, first)
        second = await api.post("asample", _body(sampler, 1, max_tokens=666))
        body = {"target": target, "prev_cursor": answer["cursor"]}
        body["retrieved_request_ids"] = [first["request_id"]]
        answer = await api.post("retrieve_futures", body)
        assert answer["completions"] == [{"state": "failed", "request_id": second["request_id"]}]
        assert (await api.poll(first["request_id"])).status_code == 410
        body["prev_cursor"] = answer["cursor"]
        assert (await api.post("retrieve_futures", body))["completions"] == []


async def test_clones_have_numbers_and_streams_of_their_own(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        sampler = await _sampler(api, await api.session())
        clones = [
            (await api.post("join_sampling_session", {"sampling_session_id": sampler}))
            for _ in range(2)
        ]
        assert [clone["client_counter"] for clone in clones] == [1, 2]
        answer = await api.post("asample", _body(sampler, 2 * 10**9))
        await _tokens(api, answer)
        target = {"type": "sampling_session", "sampling_session_id": sampler}
        for clone, ends in ((1, []), (2, [answer["request_id"]])):
            body = {"target": {**target, "cloned_sampler_id": clone}, "prev_cursor": 0}
            got = await api.post("retrieve_futures", body)
            assert [end["request_id"] for end in got["completions"]] == ends


async def test_after_a_restart_lost_samples_are_owned_up_to(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        sampler = await _sampler(api, await api.session())
        answer = await api.post("asample", _body(sampler, 0, max_tokens=999))
    async with served(tmp_path) as api:
        target = {
            "type": "sampling_session",
            "sampling_session_id": sampler,
            "cloned_sampler_id": 0,
        }
        got = await api.post("retrieve_futures", {"target": target, "prev_cursor": 12345})
        assert {"state": "failed", "request_id": answer["request_id"]} in got["completions"]
        assert (await api.poll(answer["request_id"])).status_code == 410
        assert (await api.as_tenant("tml-bob").poll(answer["request_id"])).status_code == 404
        again = await api.post("asample", _body(sampler, 0))
        assert await _tokens(api, again) == [[0, 3]]


async def test_too_many_samples_are_put_off_before_memory_is(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with served(tmp_path, engine, limits=Limits(samples_per_tenant=2)) as api:
        sampler = await _sampler(api, await api.session())
        for seq in range(2):
            await api.post("asample", _body(sampler, seq, max_tokens=999))
        response = await api.send("POST", "asample", json=_body(sampler, 2))
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        bob = api.as_tenant("tml-bob")
        theirs = await _sampler(bob, await bob.session())
        await _tokens(bob, await bob.post("asample", _body(theirs, 0)))


async def test_samples_that_arrive_together_are_all_owned_up_to(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        sampler = await _sampler(api, await api.session())
        numbers = [3, 0, 5, 1, 4, 2, 70, 200]
        bodies = [_body(sampler, number, max_tokens=999) for number in numbers]
        await asyncio.gather(*(api.post("asample", body) for body in bodies))
        await api.post("asample", _body(sampler, 300, max_tokens=999))
    async with served(tmp_path) as api:
        target = {"type": "sampling_session", "sampling_session_id": sampler}
        got = await api.post("retrieve_futures", {"target": target, "prev_cursor": 0})
        lost = {end["request_id"] for end in got["completions"] if end["state"] == "failed"}
        assert {f"{sampler}:{number}" for number in [*numbers, 300]} <= lost
