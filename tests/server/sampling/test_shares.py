"""Memory for samples is shared: who fills its part of it keeps nobody else from sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.served import MODEL, Api, served
from tinkex.server.settings import Limits, Scheduling

TOKENS = 2
SMALLER = 80
"""Half of it is less than one result takes."""


async def _sampler(api: Api) -> str:
    body = {"session_id": await api.session(), "sampling_session_seq_id": 0, "base_model": MODEL}
    return str((await api.post("create_sampling_session", body))["sampling_session_id"])


def _body(sampler: str, seq: int, prompt: int = 3, tokens: int = TOKENS) -> dict[str, Any]:
    return {
        "sampling_session_id": sampler,
        "seq_id": seq,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1] * prompt}]},
        "sampling_params": {"max_tokens": tokens},
    }


async def _ended(api: Api, request_id: str) -> bytes:
    """The result, told of but not fetched: it stays."""
    outcome = None
    while outcome is None:
        promise = api.core.promises.get(request_id)
        assert promise is not None
        outcome = await promise.wait(1.0)
    return outcome.body


async def test_results_nobody_fetches_keep_only_their_own_key_from_sampling(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, limits=Limits(sample_result_bytes=SMALLER)) as eve:
        sampler = await _sampler(eve)
        first = await eve.post("asample", _body(sampler, 0))
        await _ended(eve, first["request_id"])
        await eve.post("asample", _body(sampler, 1), expect=429)
        bob = eve.as_tenant("tml-bob")
        his = await bob.post("asample", _body(await _sampler(bob), 0))
        await bob.result(his["request_id"])
        await eve.result(first["request_id"])
        again = await eve.post("asample", _body(sampler, 1))
        await eve.result(again["request_id"])


async def test_samples_wait_here_while_results_before_them_are_not_fetched(tmp_path: Path) -> None:
    limits, one = Limits(sample_result_bytes=SMALLER), Scheduling(sequences_in_flight=1)
    async with served(tmp_path, limits=limits, scheduling=one) as eve:
        sampler = await _sampler(eve)
        asked = [await eve.post("asample", _body(sampler, seq)) for seq in range(3)]
        first, second, third = (each["request_id"] for each in asked)
        await _ended(eve, first)
        await _ended(eve, second)  # was with the engine before the first had been counted
        held = await eve.poll(third)
        assert held.status_code == 408
        assert "nobody fetched" in held.json()["queue_state_reason"]
        for request_id in (first, second, third):
            await eve.result(request_id)


async def test_prompts_that_wait_keep_only_their_own_key_from_sampling(tmp_path: Path) -> None:
    async with served(tmp_path, limits=Limits(sample_bytes=8_000)) as eve:
        sampler = await _sampler(eve)
        endless = 999  # to the engine that stands in here
        await eve.post("asample", _body(sampler, 0, prompt=1_000, tokens=endless))
        await eve.post("asample", _body(sampler, 1, prompt=1_000), expect=429)
        bob = eve.as_tenant("tml-bob")
        await bob.post("asample", _body(await _sampler(bob), 0))


async def test_a_result_is_kept_as_the_bytes_that_are_sent_and_not_twice(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        asked = await api.post("asample", _body(await _sampler(api), 0))
        await _ended(api, asked["request_id"])
        job = api.core.sampling._jobs[asked["request_id"]]
        assert job.ride.result.cancelled()
