"""Sampling under load and under trouble, over a real socket, through public names only."""

import asyncio
import logging

import pytest

import tinkex
from support.clients import PARAMS, prompt, quick_config, service_for
from support.protocol_server import ProtocolServer, expected_tokens
from support.socket_server import Cut, Damage, Reply, status

NO_RETRY = tinkex.RetryConfig(enable_retry_logic=False)


@pytest.fixture
def server():
    with ProtocolServer() as running:
        yield running


@pytest.mark.parametrize("single", [50, 0, 20], ids=["single polls", "batched polls", "both"])
async def test_many_concurrent_samples_get_their_own_answers(
    server: ProtocolServer, single: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinkex.client.sampling.client.SINGLE_POLLS", single)
    server.flags["sample_use_retrieve_futures"] = True
    service = service_for(server)
    sampler = await service.create_sampling_client_async(base_model="acme/tiny")
    answers = await asyncio.gather(
        *[sampler.sample_async(prompt(i, i + 1), 2, PARAMS) for i in range(50)]
    )
    for i, answer in enumerate(answers):
        for index, sequence in enumerate(answer.sequences):
            assert sequence.tokens == expected_tokens([i, i + 1], index, 3)
            assert sequence.sequence_id.endswith(f":{index}")
    while single == 0 and len(acknowledged(server)) < 50:
        await asyncio.sleep(0.01)
    await service.close("success")
    numbers = [call.body["seq_id"] for call in server.asked("/asample")]
    assert sorted(numbers) == list(range(50))


def acknowledged(server: ProtocolServer) -> set[str]:
    polls = server.asked("/retrieve_futures")
    return {request_id for call in polls for request_id in call.body["retrieved_request_ids"]}


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True], ids=["single polls", "batched polls"])
async def test_two_thousand_in_flight(server: ProtocolServer, batched: bool) -> None:
    server.flags["sample_use_retrieve_futures"] = batched
    service = service_for(server)
    sampler = await service.create_sampling_client_async(base_model="acme/tiny")
    answers = await asyncio.gather(
        *[sampler.sample_async(prompt(i), 1, PARAMS) for i in range(2000)]
    )
    wrong = [
        i for i, a in enumerate(answers) if a.sequences[0].tokens != expected_tokens([i], 0, 3)
    ]
    assert wrong == []
    await service.close("success")


def test_a_5xx_surfaces_when_the_caller_wants_no_retries(server: ProtocolServer) -> None:
    server.fail("/asample", status(503))
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny", retry_config=NO_RETRY)
        with pytest.raises(tinkex.InternalServerError) as caught:
            sampler.sample(prompt(1), 1, PARAMS).result(timeout=30)
        assert caught.value.status_code == 503
        assert not caught.value.is_user_error
        assert server.count("/asample") == 1, "the HTTP layer must not retry a sample"
        assert sampler.sample(prompt(1), 1, PARAMS).result(timeout=30).sequences


def test_the_default_retry_config_submits_again_with_a_new_number(server: ProtocolServer) -> None:
    server.fail("/asample", status(500), Cut(after=10), status(502))
    quick = tinkex.RetryConfig(retry_delay_base=0.001)
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny", retry_config=quick)
        assert sampler.sample(prompt(1), 1, PARAMS).result(timeout=30).sequences
    assert [c.body["seq_id"] for c in server.asked("/asample")] == [0, 1, 2, 3]


def test_a_429_holds_back_and_sends_the_same_request_again(server: ProtocolServer) -> None:
    server.fail("/asample", status(429), status(429))
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        assert sampler.sample(prompt(1), 1, PARAMS).result(timeout=30).sequences
    asked = server.asked("/asample")
    assert [c.body["seq_id"] for c in asked] == [0, 0, 0]
    keys = [r.headers["x-idempotency-key"] for r in server.requests if r.path.endswith("/asample")]
    assert len(set(keys)) == 3


def test_an_expired_future_is_submitted_again(server: ProtocolServer) -> None:
    server.fail("/retrieve_future", status(410))
    with service_for(server) as service:
        sampler = service.create_sampling_client(
            base_model="acme/tiny", retry_config=tinkex.RetryConfig(retry_delay_base=0.001)
        )
        assert sampler.sample(prompt(2), 1, PARAMS).result(timeout=30).sequences[0].tokens[0] == 2
    assert [c.body["seq_id"] for c in server.asked("/asample")] == [0, 1]


def test_a_failed_sample_is_not_retried(server: ProtocolServer) -> None:
    failed = Damage(lambda r: Reply(200, b'{"error":"too long","category":"user"}'))
    server.fail("/retrieve_future", failed)
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        with pytest.raises(tinkex.RequestFailedError, match="too long") as caught:
            sampler.sample(prompt(2), 1, PARAMS).result(timeout=30)
    assert caught.value.is_user_error
    assert caught.value.request_id == "s1:sample:0:0"
    assert server.count("/asample") == 1


def test_queue_state_reaches_observer_event_and_log_once(
    server: ProtocolServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.pending_polls = 4
    server.queue_state = {"queue_state": "paused_capacity", "queue_state_reason": "maintenance"}
    seen: list[tuple[str, str | None]] = []

    class Watching(tinkex.SamplingClient):
        def on_queue_state_change(self, queue_state, queue_state_reason):
            seen.append((queue_state.value, queue_state_reason))
            super().on_queue_state_change(queue_state, queue_state_reason)

    config = quick_config(server.url, timings=quick_config(server.url).timings.scaled(100))
    with tinkex.ServiceClient.from_config(config) as service:
        plain = service.create_sampling_client(base_model="acme/tiny")
        sampler = Watching(plain.holder, sampling_session_id=plain._sampling_session_id)
        with config.events.capture("tinkex.queue") as events, caplog.at_level(logging.WARNING):
            sampler.sample(prompt(2), 1, PARAMS).result(timeout=30)
    assert seen == [("paused_capacity", "maintenance")] * 4
    assert [e.data["state"] for e in events] == ["paused_capacity"]
    assert sum("maintenance" in record.getMessage() for record in caplog.records) == 1


class Seen(tinkex.QueueStateObserver):
    """An observer as a user writes it."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str | None]] = []

    def on_queue_state_change(
        self, queue_state: tinkex.QueueState, queue_state_reason: str | None
    ) -> None:
        self.states.append((queue_state.value, queue_state_reason))
        if len(self.states) == 1:
            raise ValueError("a bug of the observer's own")


def test_an_observer_given_as_an_argument_sees_pauses_and_the_resume(
    server: ProtocolServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.pending_polls = 2
    server.queue_state = {"queue_state": "paused_capacity"}
    observer = Seen()
    service = tinkex.ServiceClient(
        base_url=server.url,
        api_key="tml-test",
        queue_state_observer=observer,
        events=(bus := tinkex.events.EventBus()),
        telemetry=False,
    )
    with service, bus.capture("tinkex.queue") as events:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        sampler.sample(prompt(2), 1, PARAMS).result(timeout=30)
        server.queue_state = {"queue_state": "active", "queue_state_reason": "was full"}
        sampler.sample(prompt(2), 1, PARAMS).result(timeout=30)
    reason = "the server is running short on capacity"
    assert observer.states == [("paused_capacity", reason)] * 2 + [("active", None)] * 2
    told = [(event.data["state"], event.data["reason"]) for event in events]
    assert told == [("paused_capacity", reason), ("active", None)]
    assert sum("observer" in record.getMessage() for record in caplog.records) == 1


async def test_results_of_samples_and_of_rest_calls_can_be_awaited(
    server: ProtocolServer, caplog: pytest.LogCaptureFixture
) -> None:
    service = service_for(server)
    sampler = await service.create_sampling_client_async(base_model="acme/tiny")
    assert (await sampler.sample(prompt(2), 1, PARAMS)).sequences[0].tokens[0] == 2
    assert (await sampler.compute_logprobs(prompt(2, 3)))[0] is None
    rest = service._rest()
    with caplog.at_level(logging.WARNING):
        assert (await rest.list_sessions()).sessions
    assert caplog.text == "", "nothing was blocked"
    server.fail("/checkpoints", status(404))
    with pytest.raises(tinkex.NotFoundError):
        await rest.list_checkpoints("gone")
    server.fail("/sessions", status(503))  # or the result may be there before it is asked for
    with caplog.at_level(logging.WARNING):
        assert rest.list_sessions().result(timeout=30).sessions
    assert "await what it was called on" in caplog.text
    await service.close("success")


async def test_cancelling_a_sample_tells_the_server(server: ProtocolServer) -> None:
    server.dynamic_flags["sample_cancel_enabled"] = True
    server.pending_polls = 10**9
    service = service_for(server)
    sampler = await service.create_sampling_client_async(base_model="acme/tiny")
    task = asyncio.create_task(sampler.sample_async(prompt(2), 1, PARAMS))
    while not server.asked("/retrieve_future"):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while not server.asked("/cancel_future"):
        await asyncio.sleep(0.01)
    assert server.asked("/cancel_future")[0].body == {"request_id": "s1:sample:0:0"}
    await service.close("success")


def test_prompt_logprobs_have_one_entry_per_token(server: ProtocolServer) -> None:
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        assert sampler.compute_logprobs(prompt(1, 2, 3)).result(30) == [None, -1.25, -1.25]
        last = sampler.compute_logprobs(prompt(1, 2, 3, 4), prompt_logprobs_last_n=1).result(30)
        assert last == [None, None, None, -1.25]


def test_json_sample_results_are_read(server: ProtocolServer) -> None:
    server.json_results = True
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        answer = sampler.sample(prompt(7), 1, PARAMS).result(timeout=30)
        assert answer.sequences[0].tokens == [7, 8, 9]


def test_stuck_samples_fail_instead_of_waiting_for_ever(server: ProtocolServer) -> None:
    server.pending_polls = 10**9
    with service_for(server) as service:
        sampler = service.create_sampling_client(
            base_model="acme/tiny", retry_config=tinkex.RetryConfig(progress_timeout=0.2)
        )
        with pytest.raises(tinkex.APIConnectionError, match="No progress"):
            sampler.sample(prompt(1), 1, PARAMS).result(timeout=30)


def test_a_terminal_answer_to_the_batched_poll_fails_every_sample(
    server: ProtocolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinkex.client.sampling.client.SINGLE_POLLS", 0)
    server.flags["sample_use_retrieve_futures"] = True
    server.fail("/retrieve_futures", status(404))
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        for _ in range(2):
            with pytest.raises(ValueError, match="batched poll"):
                sampler.sample(prompt(1), 1, PARAMS).result(timeout=30)
