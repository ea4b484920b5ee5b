"""When a ``with`` block ends, nothing is left: no tasks, no threads, no sockets, no session."""

import gc
import logging
import os
import threading
import time
from collections.abc import Callable

import pytest

import tinkex
from support.clients import PARAMS, datum, prompt, quick_config, service_for
from support.protocol_server import ProtocolServer
from support.socket_server import Stall, status
from tinkex.client.concurrency import loop


def sdk_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tinkex")]


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def sockets() -> int:
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
        except OSError:
            continue
    return found


@pytest.fixture
def server():
    gc.collect()  # clients of tests before, which nothing but a cycle keeps
    assert eventually(lambda: sdk_threads() == []), sdk_threads()
    with ProtocolServer() as running:
        yield running


def use_everything(service: tinkex.ServiceClient) -> None:
    training = service.create_lora_training_client("acme/tiny")
    training.forward_backward([datum(1, 2)] * 3, "cross_entropy").result(timeout=30)
    sampler = training.save_weights_and_get_sampling_client()
    futures = [sampler.sample(prompt(i), 1, PARAMS) for i in range(20)]
    for future in futures:
        future.result(timeout=30)
    service.get_server_capabilities()


def test_a_with_block_leaves_nothing(server: ProtocolServer) -> None:
    before = sockets()
    with service_for(server, telemetry=True) as service:
        use_everything(service)
        assert "tinkex-loop" in sdk_threads()
        assert server.open_connections > 0
    assert sdk_threads() == []
    assert eventually(lambda: server.open_connections == 0)
    assert eventually(lambda: sockets() <= before)
    assert server.asked("/finish")[0].body == {"reason": {"type": "success"}, "detail": None}


@pytest.mark.parametrize(
    ("error", "reason"), [(ValueError, "errored"), (KeyboardInterrupt, "interrupted")]
)
def test_an_exception_closes_with_its_reason(
    server: ProtocolServer, error: type[BaseException], reason: str
) -> None:
    service = service_for(server)
    service.create_sampling_client(base_model="acme/tiny")
    with pytest.raises(error), service:
        raise error
    assert server.asked("/finish")[0].body["reason"] == {"type": reason}
    assert sdk_threads() == []


def test_work_in_flight_is_stopped_by_closing(server: ProtocolServer) -> None:
    server.pending_polls = 10**9
    service = service_for(server)
    sampler = service.create_sampling_client(base_model="acme/tiny")
    waiting = [sampler.sample(prompt(i), 1, PARAMS) for i in range(10)]
    assert eventually(lambda: server.count("/retrieve_future") >= 10)
    service.close("interrupted").result()
    assert eventually(lambda: all(future.done() for future in waiting))
    assert eventually(lambda: sdk_threads() == [])
    with pytest.raises(RuntimeError, match="closed"):
        sampler.sample(prompt(1), 1, PARAMS)


def test_closing_one_service_stops_its_work_and_nobody_elses(server: ProtocolServer) -> None:
    with service_for(server, "tml-other") as other:
        untouched = other.create_sampling_client(base_model="acme/tiny")
        server.pending_polls = 10**9
        with service_for(server) as service:
            sampler = service.create_sampling_client(base_model="acme/tiny")
            waiting = [sampler.sample(prompt(i), 1, PARAMS) for i in range(5)]
            assert eventually(lambda: server.count("/retrieve_future") >= 5)
        assert eventually(lambda: all(future.cancelled() for future in waiting))
        server.pending_polls = 0
        assert untouched.sample(prompt(1), 1, PARAMS).result(timeout=30).sequences


def test_closing_twice_is_harmless_and_use_after_close_is_refused(server: ProtocolServer) -> None:
    service = service_for(server)
    service.get_server_capabilities()
    service.close("success").result()
    service.close("errored").result()
    with pytest.raises(RuntimeError, match="ServiceClient is closed"):
        service.get_server_capabilities()
    with pytest.raises(RuntimeError, match="ServiceClient is closed"):
        service.__enter__()


def test_a_failing_finish_surfaces_but_everything_is_released(server: ProtocolServer) -> None:
    server.fail("/finish", status(404))
    with pytest.raises(tinkex.NotFoundError), service_for(server) as service:
        service.create_sampling_client(base_model="acme/tiny")
    assert sdk_threads() == []


def test_construction_and_closing_without_use_do_no_io(server: ProtocolServer) -> None:
    with service_for(server) as service:
        assert service.get_console_url().endswith("/sessions")
        assert service.get_telemetry() is None
    assert server.requests == []


def test_a_dropped_client_takes_its_work_with_it(server: ProtocolServer) -> None:
    service = service_for(server)
    sampler = service.create_sampling_client(base_model="acme/tiny")
    sampler.sample(prompt(1), 1, PARAMS).result(timeout=30)
    del service, sampler
    gc.collect()
    assert eventually(lambda: sdk_threads() == [])
    assert eventually(lambda: server.open_connections == 0)


def test_rest_clients_share_one_holder_that_goes_with_the_last(server: ProtocolServer) -> None:
    config = quick_config(server.url)
    one, two = tinkex.RestClient.from_config(config), tinkex.AdminClient.from_config(config)
    assert one.holder is two.holder
    assert server.count("/client/config") == 1
    assert one.list_sessions().result(timeout=30).sessions == ["s1"]
    del one, two
    gc.collect()
    assert eventually(lambda: sdk_threads() == [])


def test_heartbeats_flow_and_stop_with_the_session(server: ProtocolServer) -> None:
    with service_for(server) as service:
        service.create_sampling_client(base_model="acme/tiny")
        assert eventually(lambda: server.count("/session_heartbeat") >= 3)
        assert _has_task("tinkex-heartbeat")
        server.fail("/session_heartbeat", status(410))
        assert eventually(lambda: not _has_task("tinkex-heartbeat"))


def _has_task(name: str) -> bool:
    import asyncio

    current = loop._current
    return current is not None and any(
        task.get_name() == name for task in asyncio.all_tasks(current.loop)
    )


def test_missed_heartbeats_warn_and_never_stop_the_work(
    server: ProtocolServer, caplog: pytest.LogCaptureFixture
) -> None:
    from dataclasses import replace

    from support.clients import QUICK

    timings = replace(QUICK, heartbeat_interval=0.01, heartbeat_warn_after=0.05)
    server.fail("/session_heartbeat", *[status(500)] * 30)
    with caplog.at_level(logging.WARNING), service_for(server, timings=timings) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        assert eventually(lambda: any("No heartbeat" in r.getMessage() for r in caplog.records))
        assert sampler.sample(prompt(1), 1, PARAMS).result(timeout=30).sequences


def test_a_slow_telemetry_endpoint_delays_nobody(server: ProtocolServer) -> None:
    server.fail("/telemetry", *[Stall(30.0)] * 50)
    with service_for(server, telemetry=True) as service:
        server.fail("/create_model", status(422))
        with pytest.raises(tinkex.UnprocessableEntityError):
            service.create_lora_training_client("acme/tiny")
    assert sdk_threads() == []
