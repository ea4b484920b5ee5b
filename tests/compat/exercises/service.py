"""Exercises of `ServiceClient`: what it makes, and what all clients share."""

from __future__ import annotations

import math

from compat.exercises.registry import proves
from compat.world import World


@proves("ServiceClient.get_server_capabilities")
def _(w: World) -> None:
    names = [model.model_name for model in w.service.get_server_capabilities().supported_models]
    assert w.base_model in names


@proves("ServiceClient.get_server_capabilities_async")
def _(w: World) -> None:
    found = w.run(w.service.get_server_capabilities_async())
    assert all(model.max_context_length > 0 for model in found.supported_models)


@proves("ServiceClient.create_lora_training_client")
def _(w: World) -> None:
    assert w.training.get_info().lora_rank == 4


@proves("ServiceClient.create_lora_training_client_async")
def _(w: World) -> None:
    client = w.run(
        w.service.create_lora_training_client_async(w.base_model, rank=2, train_unembed=False)
    )
    assert client.get_info().lora_rank == 2


@proves("ServiceClient.create_rest_client")
def _(w: World) -> None:
    assert w.session_id in w.rest.list_sessions(limit=100).result().sessions


@proves("ServiceClient.create_sampling_client")
def _(w: World) -> None:
    client = w.service.create_sampling_client(base_model=w.base_model)
    assert len(client.sample(w.prompt(), 1, w.params()).result().sequences) == 1


@proves("ServiceClient.create_sampling_client_async")
def _(w: World) -> None:
    client = w.run(w.service.create_sampling_client_async(model_path=w.sampler_path()))
    assert client.get_base_model() == w.base_model


@proves("ServiceClient.create_training_client_from_state")
def _(w: World) -> None:
    client = w.service.create_training_client_from_state(w.state_path)
    assert client.get_info().lora_rank == 4


@proves("ServiceClient.create_training_client_from_state_async")
def _(w: World) -> None:
    client = w.run(
        w.service.create_training_client_from_state_async(w.state_path, user_metadata={"a": "b"})
    )
    run = w.rest.get_training_run(client.model_id).result()
    assert run.user_metadata == {"a": "b"}


@proves("ServiceClient.create_training_client_from_state_with_optimizer")
def _(w: World) -> None:
    client = w.service.create_training_client_from_state_with_optimizer(w.state_path)
    one = w.training_logprobs(client)
    assert all(value <= 0 for value in one)


@proves("ServiceClient.create_training_client_from_state_with_optimizer_async")
def _(w: World) -> None:
    client = w.run(w.service.create_training_client_from_state_with_optimizer_async(w.state_path))
    assert client.get_info().model_data.model_name == w.base_model


@proves("ServiceClient.create_custom_loss")
def _(w: World) -> None:
    handle = w.service.create_custom_loss(
        lambda logprobs, weights: (-(logprobs * weights).sum(), {}), {"logprobs": 1, "weights": 1}
    ).result()
    result = w.training.forward_backward_custom([w.datum()], handle).result()
    plain = w.training.forward([w.datum()], "cross_entropy").result()
    assert math.isclose(result.metrics["loss:sum"], plain.metrics["loss:sum"], rel_tol=1e-4)
    w.training.optim_step(w.types.AdamParams(learning_rate=0.0)).result()


@proves("ServiceClient.copy_weights")
def _(w: World) -> None:
    path = w.service.copy_weights(w.state_path, ttl_seconds=3600).result()
    assert path != w.state_path
    assert w.rest.get_weights_info_by_tinker_path(path).result().lora_rank == 4


@proves("ServiceClient.close")
def _(w: World) -> None:
    other = w.sdk.ServiceClient(base_url=w.base_url, api_key=w.api_key)
    client = other.create_sampling_client(base_model=w.base_model)
    assert client.get_base_model() == w.base_model
    other.close("success", "done").result()


@proves("ServiceClient.get_console_url", "TrainingClient.get_console_url")
def _(w: World) -> None:
    assert w.service.get_console_url().startswith("http")
    assert w.training.get_console_url().startswith("http")


@proves(
    "ServiceClient.get_telemetry",
    "TrainingClient.get_telemetry",
    "SamplingClient.get_telemetry",
    "RestClient.get_telemetry",
    "AdminClient.get_telemetry",
    "ServiceClient.holder",
)
def _(w: World) -> None:
    for client in (w.service, w.training, w.sampling, w.rest, w.admin):
        client.get_telemetry()
    assert w.service.holder is not None
