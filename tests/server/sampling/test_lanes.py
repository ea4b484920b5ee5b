"""A tenant's window bounds what it has with the engine and nobody else's; work nobody wants is
stopped, and who comes back is told to submit it again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.served import MODEL, QUICK, Api, served
from tinkex.engine.messages import Progress, Sample, SamplingParams
from tinkex.server.sampling.rides import ServedWeights
from tinkex.server.settings import Scheduling

IMPATIENT = dataclasses.replace(QUICK, unwatched_sample_s=0.0, poll_hold_s=30.0)
ENDLESS = 999  # the fake engine holds samples of so many tokens


async def sampler_of(api: Api, session: str) -> str:
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL}
    return str((await api.post("create_sampling_session", body))["sampling_session_id"])


async def sample(api: Api, sampler: str, seq: int, tokens: int = 2, samples: int = 1) -> str:
    body = {
        "sampling_session_id": sampler,
        "seq_id": seq,
        "num_samples": samples,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": tokens},
    }
    return str((await api.post("asample", body))["request_id"])


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not happened():
            await asyncio.sleep(0.005)


async def test_one_tenants_window_never_keeps_anothers_sample_from_the_engine(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, scheduling=Scheduling(sequences_in_flight=8)) as api:
        greedy = await sampler_of(api, await api.session())
        for seq in range(6):
            await sample(api, greedy, seq, ENDLESS, samples=4)
        held = api.engine.current.held
        await until(lambda: len(held) == 2)
        bob = api.as_tenant("tml-bob")
        theirs = await sampler_of(bob, await bob.session())
        assert isinstance(await bob.result(await sample(bob, theirs, 0)), bytes)
        assert len(held) == 2, "the window holds the rest back"
        sent = [each for each in api.engine.current.seen if isinstance(each, Sample)]
        assert sent[0].lane == sent[1].lane != sent[2].lane, "the engine knows whose each is"


async def test_a_cancelled_sample_makes_room_for_the_next_of_its_tenant(tmp_path: Path) -> None:
    async with served(tmp_path, scheduling=Scheduling(sequences_in_flight=1)) as api:
        sampler = await sampler_of(api, await api.session())
        first, second = [await sample(api, sampler, seq, ENDLESS) for seq in range(2)]
        third = await sample(api, sampler, 2)
        assert api.core.futures.explain(third) == (
            "active",
            "1 samples of this key are queued before it",
        )
        for request_id in (second, first):
            await api.post("cancel_future", {"request_id": request_id})
            assert (await api.result(request_id))["error"] == "cancelled"
        assert isinstance(await api.result(third), bytes)
        await until(lambda: not api.engine.current.held)


async def test_a_sample_nobody_waits_for_is_stopped_and_may_be_submitted_again(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, timings=IMPATIENT) as api:
        sampler = await sampler_of(api, await api.session())
        request_id = await sample(api, sampler, 0, ENDLESS)
        held = api.engine.current.held
        await until(lambda: held)
        poll = asyncio.create_task(api.poll(request_id))
        promise = api.core.promises.get(request_id)
        assert promise is not None
        await until(lambda: promise.is_awaited)
        api.core.sampling.expire()
        assert api.core.sampling.in_flight() == 1, "somebody waits for it"
        poll.cancel()
        await until(lambda: not promise.is_awaited)
        api.core.sampling.expire()
        assert api.core.sampling.in_flight() == 0
        await until(lambda: not held)
        assert (await api.poll(request_id)).status_code == 410
        assert await sample(api, sampler, 0, ENDLESS) == request_id
        await until(lambda: held)


async def test_batched_polls_keep_the_samples_of_their_client_and_hear_of_those_stopped(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, timings=IMPATIENT) as api:
        sampler = await sampler_of(api, await api.session())
        target = {"type": "sampling_session", "sampling_session_id": sampler}
        asked = {"target": {**target, "cloned_sampler_id": 0}, "prev_cursor": 0}
        mine = await sample(api, sampler, 0, ENDLESS)
        other = await sample(api, sampler, 10**9, ENDLESS)
        poll = asyncio.create_task(api.post("retrieve_futures", asked))
        alice = api.core.tenants.identify("tml-alice")
        stream = await api.core.sampling.completions(alice, sampler, 0)
        await until(lambda: not stream.idle_since(float("inf")))
        api.core.sampling.expire()
        assert api.core.sampling.find(alice, mine) is not None
        assert api.core.sampling.find(alice, other) is None
        poll.cancel()
        await until(lambda: stream.idle_since(float("inf")))
        api.core.sampling.expire()
        ends = (await api.post("retrieve_futures", asked))["completions"]
        assert {"state": "failed", "request_id": mine} in ends


async def test_a_session_that_ends_takes_its_samples_with_it_but_not_its_training(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        model = await api.model(session)
        sampler = await sampler_of(api, session)
        elsewhere = await sampler_of(api, await api.session())
        await sample(api, sampler, 0, ENDLESS)
        await sample(api, elsewhere, 0, ENDLESS)
        held = api.engine.current.held
        await until(lambda: len(held) == 2)
        trained = (await api.forward(model, 1))["request_id"]
        await api.send("POST", f"sessions/{session}/finish", json={"reason": {"type": "success"}})
        await until(lambda: len(held) == 1)
        assert api.core.sampling.in_flight() == 1
        assert isinstance(await api.result(trained), bytes)


async def test_a_sample_given_up_before_its_weights_are_loaded_never_reaches_the_engine(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        model = await api.model(session)
        body = {"model_id": model, "seq_id": 1, "path": "one"}
        saved = await api.post("save_weights_for_sampler", body)
        path = (await api.result(saved["request_id"]))["path"]
        made = {"session_id": session, "sampling_session_seq_id": 0, "model_path": path}
        sampler = (await api.post("create_sampling_session", made))["sampling_session_id"]
        api.engine.gate = asyncio.Event()
        request_id = await sample(api, sampler, 0, ENDLESS)
        await api.post("cancel_future", {"request_id": request_id})
        api.engine.gate.set()
        assert (await api.result(request_id))["error"] == "cancelled"
        seen = api.engine.current.seen
        await until(lambda: any("weights" in each.op for each in seen))
        assert not any(isinstance(each, Sample) for each in seen)


async def test_who_watches_a_sample_gets_each_token_once_though_the_engine_died(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as api:
        come: list[int] = []
        pool = api.core.engines.get(MODEL)
        params = SamplingParams(max_tokens=ENDLESS)
        command = Sample("", "", np.array([1], np.int32), params)

        def watch(progress: Progress) -> None:
            come.extend(progress.tokens.tolist())

        ride = api.core.sampling.lanes.enter("me", pool, ServedWeights(), command, watch)
        await until(lambda: api.engine.workers and api.engine.current.held)
        seeds = [api.engine.current.held[0].params.seed]
        api.engine.current.draw(ride.op, [5, 6])
        await until(lambda: come == [5, 6])
        api.engine.current.die()
        await until(lambda: len(api.engine.workers) == 2 and api.engine.current.held)
        seeds.append(api.engine.current.held[0].params.seed)
        for tokens in ([5], [6, 7], [8]):
            api.engine.current.draw(ride.op, tokens)
        await until(lambda: len(come) == 4)
        assert come == [5, 6, 7, 8]
        assert seeds[0] is not None
        assert seeds[0] == seeds[1], "what is drawn again is the same"
