"""Every public method of the official clients exists here with the same parameters."""

import asyncio
import inspect
import logging
import pickle
from concurrent.futures import Future
from typing import Any

import pytest

import tinkex
from support.clients import service_for
from support.protocol_server import ProtocolServer

tinker = pytest.importorskip("tinker")

CLIENTS = ["ServiceClient", "TrainingClient", "SamplingClient", "RestClient", "AdminClient"]


def public(cls: type) -> list[str]:
    names = [name for name in vars(cls) if not name.startswith("_")]
    return [*names, "__init__"]


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, repr(p.default)) for p in parameters]


PAIRS = [(client, name) for client in CLIENTS for name in public(getattr(tinker, client))]


@pytest.mark.parametrize(("client", "name"), PAIRS, ids=[f"{c}.{n}" for c, n in PAIRS])
def test_the_method_is_the_same(client: str, name: str) -> None:
    official, ours = getattr(tinker, client), getattr(tinkex, client)
    theirs, mine = inspect.getattr_static(official, name), inspect.getattr_static(ours, name)
    if isinstance(theirs, property):
        assert isinstance(mine, property)
        return
    assert isinstance(theirs, staticmethod) == isinstance(mine, staticmethod)
    assert shape(getattr(ours, name)) == shape(getattr(official, name))
    if inspect.iscoroutinefunction(getattr(official, name)):
        assert inspect.iscoroutinefunction(getattr(ours, name))


@pytest.mark.parametrize(
    ("method", "returns"),
    [
        (tinkex.ServiceClient.create_sampling_client, "SamplingClient"),
        (tinkex.RestClient.list_sessions, "ResultFuture[ListSessionsResponse]"),
        (tinkex.RestClient.whoami, "APIFuture[WhoamiResponse]"),
        (tinkex.AdminClient.get_audit_log, "ResultFuture[AuditLogResponse]"),
    ],
)
def test_help_says_what_a_sync_method_returns(method: Any, returns: str) -> None:
    assert inspect.signature(method).return_annotation == returns


@pytest.mark.parametrize(("client", "name"), PAIRS, ids=[f"{c}.{n}" for c, n in PAIRS])
def test_help_says_what_every_method_returns(client: str, name: str) -> None:
    mine = inspect.getattr_static(getattr(tinkex, client), name)
    if inspect.isfunction(mine):
        assert inspect.signature(mine).return_annotation is not inspect.Signature.empty


def test_a_wrong_argument_is_told_of_the_method_that_was_called() -> None:
    with ProtocolServer() as server, service_for(server) as service:
        calls: list[Any] = [
            service.create_sampling_client,
            service._rest().list_sessions,
            service._rest().whoami,
        ]
        named = [
            "ServiceClient.create_sampling_client",
            "RestClient.list_sessions",
            "RestClient.whoami",
        ]
        for call, name in zip(calls, named, strict=True):
            with pytest.raises(TypeError, match="modelpath") as refused:
                call(modelpath="x")
            assert str(refused.value).startswith(f"{name}()")


@pytest.mark.parametrize("client", ["TrainingClient", "SamplingClient"])
def test_the_public_coroutines_are_those_that_programs_know_to_wrap(client: str) -> None:
    """The cookbook wraps all of them for its traces, by a list of the official names."""
    ours, official = getattr(tinkex, client), getattr(tinker, client)
    public = [name for name in dir(ours) if not name.startswith("_")]
    coroutines = [name for name in public if inspect.iscoroutinefunction(getattr(ours, name))]
    assert [name for name in coroutines if not hasattr(official, name)] == []


@pytest.mark.parametrize("client", CLIENTS)
def test_methods_are_plain_functions_that_can_be_patched(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = getattr(tinkex, client)
    assert "__slots__" not in vars(cls)
    for name in public(cls):
        static = inspect.getattr_static(cls, name)
        if not isinstance(static, property | staticmethod | classmethod):
            assert inspect.isfunction(static), name
            monkeypatch.setattr(cls, name, static)


def test_return_shapes() -> None:
    with ProtocolServer() as server, service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        sampler = service.create_sampling_client(base_model="acme/tiny")
        rest = service._rest()
        step = training.optim_step(tinkex.AdamParams())
        assert isinstance(step, tinkex.APIFuture)
        assert isinstance(sampler.compute_logprobs(tinkex.ModelInput.from_ints([1, 2])), Future)
        assert isinstance(rest.list_sessions(), Future)
        assert isinstance(rest.get_sampler("x"), tinkex.APIFuture)
        assert isinstance(rest.copy_weights("tinker://r/weights/x", "p"), tinkex.APIFuture)
        done: list[Any] = []
        step._future.add_done_callback(done.append)
        step.result()
        assert len(done) == 1

        async def awaited() -> tuple[Any, Any]:
            future = await training.optim_step_async(tinkex.AdamParams())
            return future, await future

        future, value = asyncio.run(awaited())
        assert isinstance(future, tinkex.APIFuture)
        assert value.metrics == {"grad_norm": 0.5}


def test_blocking_calls_inside_a_loop_are_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    with ProtocolServer() as server, service_for(server) as service:

        async def careless() -> None:
            service.get_server_capabilities()

        with caplog.at_level(logging.WARNING):
            asyncio.run(careless())
        assert "get_server_capabilities_async" in caplog.text
        assert "careless" in caplog.text
        caplog.clear()
        service.get_server_capabilities()
        assert caplog.text == ""


def test_a_line_that_blocks_is_pointed_out_once_however_often_it_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ProtocolServer() as server, service_for(server) as service:

        async def careless() -> None:
            for _ in range(3):
                service.get_server_capabilities()
            service.get_server_capabilities()

        with caplog.at_level(logging.WARNING):
            asyncio.run(careless())
        assert caplog.text.count("get_server_capabilities_async") == 2


def test_blocking_in_a_callback_is_refused_instead_of_deadlocking() -> None:
    with ProtocolServer() as server, service_for(server) as service:
        seen: list[str] = []

        def careless(event: Any) -> None:
            try:
                service.get_server_capabilities()
            except RuntimeError as error:
                seen.append(str(error))

        unsubscribe = service.config.events.subscribe(careless, "tinkex.session.start")
        service.create_sampling_client(base_model="acme/tiny")
        unsubscribe()
        assert len(seen) == 1
        assert "would block" in seen[0]


def test_a_subclass_that_overrides_the_sync_method_changes_the_async_one() -> None:
    class Mine(tinkex.TrainingClient):
        def optim_step(self, *args: Any, **kwargs: Any) -> Any:
            return "mine"

    with ProtocolServer() as server, service_for(server) as service:
        made = service.create_lora_training_client("acme/tiny")
        mine = Mine(made.holder, 0, made.model_id)
        assert asyncio.run(mine.optim_step_async()) == "mine"


def test_a_client_that_cannot_go_to_another_process_says_what_to_do() -> None:
    with ProtocolServer() as server, service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        for client in (service, training, service._rest(), tinkex.AdminClient(service.holder)):
            with pytest.raises(TypeError, match=r"cannot be pickled.*(each process|saved state)"):
                pickle.dumps(client)
