"""A server that misbehaves: the client goes on, or says clearly why not. It never hangs."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import tinkex
from support.clients import PARAMS, QUICK, datum, prompt, quick_config, service_for
from support.protocol_server import ProtocolServer
from support.socket_server import Answer, Cut, Damage, Drip, Fault, Refuse, Reply, Stall, status
from tinkex.client.errors import CircuitOpenError
from tinkex.client.settings.breaker import BreakerConfig, CircuitBreaker
from tinkex.client.settings.config import Timeout

NO_RETRY = tinkex.RetryConfig(enable_retry_logic=False)


def truncated(reply: Reply) -> Reply:
    return Reply(reply.status, reply.body[: len(reply.body) // 2], reply.content_type)


def as_text(reply: Reply) -> Reply:
    return Reply(reply.status, reply.body, "text/html")


def garbage(reply: Reply) -> Reply:
    return Reply(reply.status, b"\xff\xfe<html>not this</html>", reply.content_type)


@pytest.fixture
def server():
    with ProtocolServer() as running:
        yield running


HARMLESS: list[tuple[str, Fault]] = [
    ("cut before the answer", Cut(after=0)),
    ("cut in the status line", Cut(after=10)),
    ("cut in the headers", Cut(after=40)),
    ("cut in the body", Cut(after=90)),
    ("refused", Refuse()),
    ("stalled a little", Stall(0.05)),
    ("slow headers and body", Drip()),
    ("not HTTP", Answer(Reply(200))),
    ("429 with retry-after", status(429, retry_after="0.01")),
    ("429 with retry-after-ms", status(429, retry_after_ms="10")),
    ("429 with a date", status(429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT")),
    ("429 with nonsense", status(429, retry_after="soon")),
    ("500", status(500)),
    ("502 with html", status(502, b"<html>bad gateway</html>")),
    ("bare 400 from a proxy", status(400, b"")),
    ("408", status(408)),
    ("409", status(409)),
]


@pytest.mark.parametrize(("name", "fault"), HARMLESS, ids=[name for name, _ in HARMLESS])
@pytest.mark.parametrize("path", ["/optim_step", "/retrieve_future"])
def test_trouble_that_passes_is_survived(
    server: ProtocolServer, path: str, name: str, fault: Fault
) -> None:
    if name == "not HTTP":
        fault = Damage(lambda reply: _NotHttp(reply.status, reply.body))
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        server.fail(path, fault)
        assert training.optim_step(tinkex.AdamParams()).result(timeout=30).metrics
        assert training.optim_step(tinkex.AdamParams()).result(timeout=30).metrics


class _NotHttp(Reply):
    def encoded(self) -> bytes:
        return b"220 mail.example.com ESMTP\r\n\r\n"


def test_a_burst_of_server_errors_is_survived(server: ProtocolServer) -> None:
    server.fail("/optim_step", *[status(503)] * 8)
    server.fail("/retrieve_future", *[status(500)] * 8, when=b'"f2"')
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        assert training.optim_step(tinkex.AdamParams()).result(timeout=60).metrics


@pytest.mark.parametrize("damage", [truncated, garbage], ids=["truncated", "garbage"])
def test_damaged_results_are_asked_for_again_and_then_reported(
    server: ProtocolServer, damage: object
) -> None:
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        server.fail("/retrieve_future", Damage(damage))
        assert training.optim_step(tinkex.AdamParams()).result(timeout=30).metrics
        server.fail("/retrieve_future", *[Damage(damage)] * 4)
        with pytest.raises(ValueError, match="cannot be retrieved"):
            training.optim_step(tinkex.AdamParams()).result(timeout=30)
        server.fail("/retrieve_future", *[Damage(damage)] * 4)
        with pytest.raises(ValueError, match="cannot be retrieved"):
            training.forward([datum(1, 2)], "cross_entropy").result(timeout=30)
        assert training.forward([datum(1, 2)], "cross_entropy").result(timeout=30).metrics


def test_json_with_a_wrong_content_type_is_read(server: ProtocolServer) -> None:
    server.fail("/create_model", Damage(as_text))
    server.fail("/retrieve_future", Damage(as_text))
    with service_for(server) as service:
        assert service.create_lora_training_client("acme/tiny").model_id == "s1:train:0"


def test_an_answer_of_the_wrong_shape_names_the_field(server: ProtocolServer) -> None:
    server.fail("/create_session", Answer(Reply(200, b'{"session":"x"}')))
    with service_for(server) as service:
        with pytest.raises(tinkex.APIResponseValidationError, match="session_id"):
            service.create_lora_training_client("acme/tiny")
        assert service.create_lora_training_client("acme/tiny").model_id == "s1:train:0"


def test_a_server_that_never_answers_times_out(server: ProtocolServer) -> None:
    config = quick_config(server.url, timeout=Timeout(0.1), timings=QUICK)
    server.fail("/create_sampling_session", *[Stall(5.0)] * 11)
    service = tinkex.ServiceClient.from_config(config)
    with service, pytest.raises(tinkex.APITimeoutError):
        service.create_sampling_client(base_model="acme/tiny")


def test_a_poll_that_is_refused_for_good_is_reported(server: ProtocolServer) -> None:
    for code in (401, 403, 404, 422):
        with service_for(server) as service:
            training = service.create_lora_training_client("acme/tiny")
            server.fail("/retrieve_future", status(code))
            with pytest.raises(ValueError, match=str(code)) as caught:
                training.optim_step(tinkex.AdamParams()).result(timeout=30)
            assert isinstance(caught.value, tinkex.TinkerError)
            assert training.optim_step(tinkex.AdamParams()).result(timeout=30).metrics


def test_a_lost_training_promise_says_so(server: ProtocolServer) -> None:
    from tinkex.client.errors import RetryableException

    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        server.fail("/retrieve_future", status(410))
        with pytest.raises(RetryableException, match="submit it again"):
            training.optim_step(tinkex.AdamParams()).result(timeout=30)
        assert training.optim_step(tinkex.AdamParams()).result(timeout=30).metrics


def test_a_billing_problem_pauses_the_work_and_surfaces_on_creation(
    server: ProtocolServer,
) -> None:
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        server.fail("/optim_step", status(402), status(402))
        server.fail("/retrieve_future", status(402))
        assert training.optim_step(tinkex.AdamParams()).result(timeout=30).metrics
        server.fail("/create_model", status(402))
        with pytest.raises(tinkex.BillingError):
            service.create_lora_training_client("acme/tiny")


def test_a_server_that_is_gone_is_a_connection_error() -> None:
    config = quick_config("http://127.0.0.1:9", timings=QUICK.scaled(0.1))
    service = tinkex.ServiceClient.from_config(config)
    with service, pytest.raises(tinkex.APIConnectionError) as caught:
        service.get_server_capabilities()
    assert not caught.value.is_user_error


def test_redirects_are_followed(server: ProtocolServer) -> None:
    server.fail(
        "/audit",
        Answer(Reply(302, b"", headers={"location": f"{server.url}/api/v1/audit"})),
    )
    admin = tinkex.AdminClient.from_config(quick_config(server.url))
    assert admin.get_audit_log().result(timeout=30).entries


def test_compressed_answers_are_read(server: ProtocolServer) -> None:
    import gzip

    def compress(reply: Reply) -> Reply:
        return Reply(
            reply.status,
            gzip.compress(reply.body),
            reply.content_type,
            {"content-encoding": "gzip"},
        )

    server.fail("/client/config", Damage(compress))
    with service_for(server) as service:
        assert service.get_server_capabilities().supported_models


def test_an_answer_over_the_limit_is_refused(server: ProtocolServer) -> None:
    huge = Answer(Reply(200, b'{"x":"' + b"a" * 100_000 + b'"}'))
    server.fail("/create_session", *[huge] * 20)
    config = quick_config(server.url, max_response_bytes=10_000)
    service = tinkex.ServiceClient.from_config(config)
    with service, pytest.raises(tinkex.APIConnectionError, match="max_response_bytes"):
        service.create_lora_training_client("acme/tiny")


def test_the_error_of_a_refused_request_tells_what_the_server_said(server: ProtocolServer) -> None:
    detail = json.dumps({"detail": "base_model: no such model"}).encode()
    with service_for(server) as service:
        server.fail("/create_model", status(404, detail, x_request_id="r-77"))
        with pytest.raises(tinkex.NotFoundError, match="no such model") as caught:
            service.create_lora_training_client("acme/none")
    assert caught.value.is_user_error
    assert caught.value.body == {"detail": "base_model: no such model"}
    assert caught.value.request_id == "r-77"
    assert "tml-test" not in repr(caught.value.__dict__)


def test_sampling_survives_the_same_faults(server: ProtocolServer) -> None:
    retry = tinkex.RetryConfig(retry_delay_base=0.001)
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny", retry_config=retry)
        for _, fault in HARMLESS:
            if fault == Answer(Reply(200)):
                continue
            server.fail("/asample", fault)
            server.fail("/retrieve_future", fault)
            answer = sampler.sample(prompt(5), 1, PARAMS).result(timeout=30)
            assert answer.sequences[0].tokens == [5, 6, 7]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("batched", [False, True], ids=["single poll", "batched poll"])
def test_an_open_circuit_ends_waiting_for_results(
    server: ProtocolServer, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    breaker = partial(CircuitBreaker, clock=clock.monotonic)
    monkeypatch.setattr("tinkex.client.api.admission.CircuitBreaker", breaker)
    server.flags["sample_use_retrieve_futures"] = batched
    monkeypatch.setattr("tinkex.client.sampling.client.SINGLE_POLLS", 0)
    config = quick_config(server.url, breaker=BreakerConfig(failures=1, cooldown=60.0))
    with tinkex.ServiceClient.from_config(config) as service:
        training = service.create_lora_training_client("acme/tiny")
        sampler = service.create_sampling_client(base_model="acme/tiny")
        waiting: list[tuple[str, Callable[[], Any]]] = [
            ("/retrieve_future", lambda: training.optim_step(tinkex.AdamParams())),
            (
                "/retrieve_futures" if batched else "/retrieve_future",
                lambda: sampler.sample(prompt(1), 1, PARAMS),
            ),
        ]
        for path, submit in waiting:
            server.fail(path, status(500))  # one: what succeeds in between counts as well
            with pytest.raises(CircuitOpenError):
                submit().result(timeout=30)
            clock.now += 61.0
            assert submit().result(timeout=30), "a closed circuit lets work through again"


def test_a_sample_the_server_does_not_want_again_is_the_callers_at_once(
    server: ProtocolServer,
) -> None:
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        for code in (402, 429, 503):
            server.fail("/asample", status(code, x_should_retry="false"))
            with pytest.raises(tinkex.APIStatusError) as caught:
                sampler.sample(prompt(1), 1, PARAMS).result(timeout=30)
            assert caught.value.status_code == code


@pytest.mark.parametrize("code", [402, 429, 503])
def test_without_retries_a_refused_sample_is_the_callers_and_slows_the_next(
    server: ProtocolServer, code: int
) -> None:
    config = quick_config(server.url)
    with tinkex.ServiceClient.from_config(config) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny", retry_config=NO_RETRY)
        server.fail("/asample", status(code, retry_after_ms="500"))
        with config.events.capture("tinkex.") as seen:
            with pytest.raises(tinkex.APIStatusError):
                sampler.sample(prompt(1), 1, PARAMS).result(timeout=30)
            assert sampler.sample(prompt(1), 1, PARAMS).result(timeout=30).sequences
    names = [event.name for event in seen]
    assert names.count("tinkex.http.request.start") >= 2
    assert ("tinkex.limiter.wait" in names) == (code == 429)
    assert ("tinkex.sampling.backpressure" in names) == (code == 429)


def test_an_open_circuit_fails_fast_and_closes_again(
    server: ProtocolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    breaker = partial(CircuitBreaker, clock=clock.monotonic)
    monkeypatch.setattr("tinkex.client.api.admission.CircuitBreaker", breaker)
    config = quick_config(server.url, breaker=BreakerConfig(failures=3, cooldown=60.0))
    with tinkex.ServiceClient.from_config(config) as service:
        training = service.create_lora_training_client("acme/tiny")
        sampler = service.create_sampling_client(base_model="acme/tiny", retry_config=NO_RETRY)
        patient = service.create_sampling_client(base_model="acme/tiny")
        server.fail("/asample", *[status(500)] * 3)
        with config.events.capture("tinkex.breaker") as seen:
            for _ in range(3):
                with pytest.raises(tinkex.InternalServerError):
                    sampler.sample(prompt(1), 1, PARAMS).result(timeout=30)
            calls: list[Callable[[], Any]] = [
                lambda: sampler.sample(prompt(1), 1, PARAMS).result(timeout=30),
                lambda: patient.sample(prompt(1), 1, PARAMS).result(timeout=30),
                lambda: list(patient.stream(prompt(1), PARAMS)),
                lambda: training.optim_step(tinkex.AdamParams()).result(timeout=30),
                lambda: training.save_state("x").result(timeout=30),
                training.get_info,
                lambda: service.create_sampling_client(base_model="acme/tiny"),
            ]
            for call in calls:
                with pytest.raises(CircuitOpenError) as caught:
                    call()
                assert caught.value.retry_after == 60.0
            clock.now += 61.0
            assert patient.sample(prompt(1), 1, PARAMS).result(timeout=30).sequences
        assert [e.name.rpartition(".")[2] for e in seen] == ["open", "close"]
