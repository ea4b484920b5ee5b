"""Two configurations in one process: what happens to one never happens to the other."""

import logging
import threading
import time

import pytest

import tinkex
from support.clients import PARAMS, datum, prompt, quick_config, service_for
from support.protocol_server import ProtocolServer
from support.socket_server import status
from tinkex.client.api.limiter import shared_limiter


def test_two_services_train_and_sample_at_the_same_time() -> None:
    with ProtocolServer() as one, ProtocolServer() as two:
        with service_for(one, "tml-one") as first, service_for(two, "tml-two") as second:
            runs = [s.create_lora_training_client("acme/tiny") for s in (first, second)]
            steps = [run.forward_backward([datum(1, 2)], "cross_entropy") for run in runs]
            samplers = [run.save_weights_and_get_sampling_client() for run in runs]
            samples = [s.sample(prompt(3), 1, PARAMS) for s in samplers]
            assert all(step.result(30).metrics["datums:sum"] == 1 for step in steps)
            assert all(s.result(30).sequences[0].tokens[0] == 3 for s in samples)
        assert {r.headers["x-api-key"] for r in one.requests} == {"tml-one"}
        assert {r.headers["x-api-key"] for r in two.requests} == {"tml-two"}
        for server in (one, two):
            assert server.count("/create_session") == 1
            assert server.count("/finish") == 1


def test_a_throttled_key_waits_and_another_does_not() -> None:
    with ProtocolServer() as server:
        patient = quick_config(server.url, "tml-slow")
        with (
            tinkex.ServiceClient.from_config(patient) as slow,
            service_for(server, "tml-slow") as same_key,
            service_for(server, "tml-fast") as fast,
        ):
            training = slow.create_lora_training_client("acme/tiny")
            other = fast.create_lora_training_client("acme/tiny")
            same = same_key.create_lora_training_client("acme/tiny")
            server.fail("/optim_step", status(429, retry_after="1.0"))
            throttled = training.optim_step(tinkex.AdamParams())
            limiter = shared_limiter(server.url, "tml-slow")
            while not limiter.remaining:
                time.sleep(0.005)
            before = len(server.requests)
            blocked = same.optim_step(tinkex.AdamParams())
            unaffected = [other.optim_step(tinkex.AdamParams()) for _ in range(20)]
            for step in unaffected:
                step.result(timeout=30)
            assert not throttled.future().done()
            assert not blocked.future().done(), "the same key must wait, whichever client uses it"
            keys = {r.headers["x-api-key"] for r in server.requests[before:]}
            assert keys == {"tml-fast"}
            throttled.result(timeout=30)
            blocked.result(timeout=30)


def test_without_a_delay_in_the_answer_nobody_else_waits() -> None:
    with ProtocolServer() as server:
        server.fail("/optim_step", status(429))
        config = quick_config(server.url)
        with tinkex.ServiceClient.from_config(config) as service:
            training = service.create_lora_training_client("acme/tiny")
            with config.events.capture("tinkex.limiter") as events:
                training.optim_step(tinkex.AdamParams()).result(timeout=30)
        assert events == []


def test_events_and_metrics_stay_with_their_configuration() -> None:
    with ProtocolServer() as server:
        one, two = quick_config(server.url, "tml-one"), quick_config(server.url, "tml-two")
        with tinkex.ServiceClient.from_config(one) as service:
            service.get_server_capabilities()
        assert one.events.metrics.snapshot().counters["tinkex.http.request.stop"] == 3
        assert two.events.metrics.snapshot().counters == {}


def test_one_service_is_used_from_many_threads() -> None:
    with ProtocolServer() as server, service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        answers: dict[int, list[int]] = {}

        def work(i: int) -> None:
            answers[i] = sampler.sample(prompt(i), 1, PARAMS).result(30).sequences[0].tokens

        threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(answers[i][0] == i for i in range(20))


def test_the_log_tells_which_session_and_run_a_program_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="tinkex")
    with ProtocolServer() as server, service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        session = training.holder.session_id
    lines = [record.getMessage() for record in caplog.records]
    assert f"session {session} is open" in lines
    assert f"training run {training.model_id} is ready" in lines
