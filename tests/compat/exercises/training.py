"""Exercises of `TrainingClient`."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pyrage
import torch

from compat.exercises.registry import proves
from compat.world import World


@proves("TrainingClient.forward")
def _(w: World) -> None:
    result = w.training.forward([w.datum(), w.datum(9)], "cross_entropy").result()
    shapes = [output["logprobs"].shape for output in result.loss_fn_outputs]
    assert shapes == [[6], [9]]
    total = -sum(sum(output["logprobs"].tolist()) for output in result.loss_fn_outputs)
    assert math.isclose(result.metrics["loss:sum"], total, rel_tol=1e-4)


@proves("TrainingClient.forward_async")
def _(w: World) -> None:
    async def work() -> Any:
        return await (await w.training.forward_async([w.datum()], "cross_entropy"))

    assert w.run(work()).metrics["loss:sum"] > 0


@proves("TrainingClient.forward_backward", "TrainingClient.optim_step")
def _(w: World) -> None:
    client = w.service.create_lora_training_client(w.base_model, rank=4, seed=1)
    losses = []
    for _step in range(3):
        future = client.forward_backward([w.datum()], "cross_entropy")
        client.optim_step(w.types.AdamParams(learning_rate=1e-2)).result()
        losses.append(future.result().metrics["loss:sum"])
    assert losses[2] < losses[1] < losses[0]


@proves("TrainingClient.forward_backward_async", "TrainingClient.optim_step_async")
def _(w: World) -> None:
    async def work() -> Any:
        first = await w.training.forward_backward_async([w.datum()], "cross_entropy")
        second = await w.training.optim_step_async(w.types.AdamParams(learning_rate=0.0))
        return await first.result_async(), await second.result_async()

    first, _ = w.run(work())
    assert first.metrics["loss:sum"] > 0


@proves("TrainingClient.forward_backward_custom")
def _(w: World) -> None:
    def loss(
        data: list[Any], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        return -torch.stack([row.sum() for row in logprobs]).sum(), {"mine": 2.0}

    result = w.training.forward_backward_custom([w.datum()], loss).result()
    assert result.metrics["loss:sum"] > 0
    w.training.optim_step(w.types.AdamParams(learning_rate=0.0)).result()


@proves("TrainingClient.forward_backward_custom_async")
def _(w: World) -> None:
    def loss(
        data: list[Any], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        return (logprobs[0] ** 2).sum(), {}

    async def work() -> Any:
        future = await w.training.forward_backward_custom_async([w.datum()], loss)
        return await future.result_async()

    assert w.run(work()).metrics["loss:sum"] > 0
    w.training.optim_step(w.types.AdamParams(learning_rate=0.0)).result()


@proves("TrainingClient.get_info")
def _(w: World) -> None:
    info = w.training.get_info()
    assert (info.model_id, info.is_lora) == (w.training.model_id, True)


@proves("TrainingClient.get_info_async")
def _(w: World) -> None:
    assert w.run(w.training.get_info_async()).model_data.model_name == w.base_model


@proves("TrainingClient.get_tokenizer")
def _(w: World) -> None:
    tokenizer = w.training.get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"


@proves("TrainingClient.save_state")
def _(w: World) -> None:
    name = w.name()
    path = w.training.save_state(name, ttl_seconds=3600, user_metadata={"k": "v"}).result().path
    assert path == f"tinker://{w.training.model_id}/weights/{name}"
    assert w.training.save_state(name, overwrite=True).result().path == path


@proves("TrainingClient.save_state_async")
def _(w: World) -> None:
    async def work() -> Any:
        return await (await w.training.save_state_async(w.name()))

    assert w.run(work()).path.startswith("tinker://")


@proves("TrainingClient.load_state", "TrainingClient.load_state_with_optimizer")
def _(w: World) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = w.service.create_lora_training_client(w.base_model, rank=4)
        client.load_state(w.state_path).result()
        plain = w.training_logprobs(client)
        client.load_state_with_optimizer(w.state_path).result()
    saved = w.service.create_training_client_from_state(w.state_path)
    assert plain == w.training_logprobs(client) == w.training_logprobs(saved)


@proves("TrainingClient.load_state_async", "TrainingClient.load_state_with_optimizer_async")
def _(w: World) -> None:
    async def work() -> Any:
        client = await w.service.create_lora_training_client_async(w.base_model, rank=4)
        await (await client.load_state_async(w.state_path))
        return await (await client.load_state_with_optimizer_async(w.state_path))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert w.run(work()) is not None


@proves("TrainingClient.save_weights_for_sampler")
def _(w: World) -> None:
    name = w.name()
    path = w.training.save_weights_for_sampler(name, ttl_seconds=3600).result().path
    assert path == f"tinker://{w.training.model_id}/sampler_weights/{name}"


@proves("TrainingClient.save_weights_for_sampler_async")
def _(w: World) -> None:
    async def work() -> Any:
        return await (await w.training.save_weights_for_sampler_async(w.name()))

    assert "/sampler_weights/" in w.run(work()).path


@proves("TrainingClient.save_weights_external")
def _(w: World) -> None:
    identity = pyrage.x25519.Identity.generate()
    result = w.training.save_weights_external(
        w.name(), ttl_seconds=3600, age_encryption_recipients=[str(identity.to_public())]
    ).result()
    urls = w.rest.get_external_weights_urls(result.path).result().urls
    assert all(name.endswith(".age") for name in urls)
    config = pyrage.decrypt(w.fetch(urls["adapter_config.json.age"]), [identity])
    assert b'"r"' in config


@proves("TrainingClient.save_weights_external_async")
def _(w: World) -> None:
    async def work() -> Any:
        return await (await w.training.save_weights_external_async(w.name()))

    assert w.checkpoint(w.run(work()).path).size_bytes > 0


@proves("TrainingClient.save_weights_and_get_sampling_client")
def _(w: World) -> None:
    client = w.training.save_weights_and_get_sampling_client()
    scored = client.compute_logprobs(
        w.types.ModelInput.from_ints([65, 66, 67, 68, 69, 70])
    ).result()
    trained = w.training_logprobs(w.training)
    pairs = zip(scored[1:], trained[:-1], strict=True)
    assert all(math.isclose(a, b, abs_tol=1e-3) for a, b in pairs)


@proves("TrainingClient.save_weights_and_get_sampling_client_async")
def _(w: World) -> None:
    client = w.run(w.training.save_weights_and_get_sampling_client_async())
    assert client.sample(w.prompt(), 1, w.params()).result().sequences[0].tokens


@proves("TrainingClient.create_sampling_client")
def _(w: World) -> None:
    client = w.training.create_sampling_client(w.sampler_path())
    assert client.sample(w.prompt(), 1, w.params()).result().sequences[0].tokens


@proves("TrainingClient.create_sampling_client_async")
def _(w: World) -> None:
    client = w.run(w.training.create_sampling_client_async(w.sampler_path()))
    assert client.get_base_model() == w.base_model
