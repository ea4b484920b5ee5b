"""Telemetry: batched, complete, free of secrets, and never in anybody's way."""

import time
from collections.abc import Callable

import pytest

import tinkex
from support.clients import PARAMS, prompt, service_for
from support.protocol_server import ProtocolServer
from support.socket_server import status


@pytest.fixture
def server():
    with ProtocolServer() as running:
        yield running


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def events(server: ProtocolServer) -> list[dict[str, object]]:
    return [event for call in server.asked("/telemetry") for event in call.body["events"]]


def test_batches_are_what_the_official_server_expects(server: ProtocolServer) -> None:
    with service_for(server, telemetry=True) as service:
        service.create_sampling_client(base_model="acme/tiny")
        telemetry = service.get_telemetry()
        assert telemetry is not None
        assert telemetry.log("step", {"n": 1}, "DEBUG")
        assert eventually(lambda: len(events(server)) == 2)
        with pytest.raises(ZeroDivisionError), telemetry.capture_exceptions(fatal=True):
            raise ZeroDivisionError("oops")
    batch = server.asked("/telemetry")[0].body
    assert batch["session_id"] == "s1"
    assert batch["sdk_version"] == "0.36.0"
    kinds = [event["event"] for event in events(server)]
    assert kinds == ["SESSION_START", "GENERIC_EVENT", "UNHANDLED_EXCEPTION", "SESSION_END"]
    assert [event["event_session_index"] for event in events(server)] == [0, 1, 2, 3]
    official = pytest.importorskip("tinker.types.telemetry_send_request")
    for call in server.asked("/telemetry"):
        official.TelemetrySendRequest.model_validate(call.body)


def test_nothing_secret_is_sent(server: ProtocolServer) -> None:
    with service_for(server, "tml-secret-key", telemetry=True) as service:
        service.create_sampling_client(base_model="acme/tiny")
        telemetry = service.get_telemetry()
        assert telemetry is not None
        telemetry.log("x", {"headers": {"X-API-Key": "tml-secret-key"}, "t": "tml-secret-key"})
        telemetry.log_exception(RuntimeError("the key tml-secret-key was refused"))
    assert len(events(server)) == 3
    assert "secret" not in str(server.asked("/telemetry"))


def test_user_errors_are_told_apart(server: ProtocolServer) -> None:
    with service_for(server, telemetry=True) as service:
        service.create_sampling_client(base_model="acme/tiny")
        server.fail("/create_model", status(404))
        with pytest.raises(tinkex.NotFoundError) as caught:
            service.create_lora_training_client("none")
        assert caught.value.is_user_error
        server.fail("/create_model", *[status(500)] * 11)
        with pytest.raises(tinkex.InternalServerError):
            service.create_lora_training_client("none")
    failed = events(server)[1:]
    assert [event["event"] for event in failed] == ["GENERIC_EVENT", "UNHANDLED_EXCEPTION"]
    assert failed[0]["event_name"] == "user_error"
    assert failed[1]["error_type"] == "InternalServerError"


def test_refused_batches_are_kept_and_sent_again(server: ProtocolServer) -> None:
    server.fail("/telemetry", status(500), status(503))
    with service_for(server, telemetry=True) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        assert sampler.sample(prompt(1), 1, PARAMS).result(timeout=30).sequences
        assert eventually(lambda: server.count("/telemetry") >= 3)
    accepted = server.asked("/telemetry")[2].body["events"]
    assert [event["event"] for event in accepted] == ["SESSION_START"]


def test_the_queue_is_bounded(server: ProtocolServer) -> None:
    with service_for(server, telemetry=True) as service:
        service.create_sampling_client(base_model="acme/tiny")
        telemetry = service.get_telemetry()
        assert telemetry is not None
        telemetry._queue.extend([{}] * 10_000)
        assert telemetry.log("one too many") is False
        telemetry._queue.clear()


def test_it_can_be_turned_off(server: ProtocolServer) -> None:
    with service_for(server, telemetry=False) as service:
        service.create_sampling_client(base_model="acme/tiny")
        assert service.get_telemetry() is None
    assert server.count("/telemetry") == 0
