"""One exercise per public method of the clients, sync and async: it calls, and checks the answer.

Each function is registered under the methods it proves. They share a `World` and leave it usable.
"""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Callable
from typing import Any

import pyrage
import torch

from compat.world import PROMPT, World, unsigned_jwt

Exercise = Callable[[World], None]
EXERCISES: dict[str, Exercise] = {}


def proves(*methods: str) -> Callable[[Exercise], Exercise]:
    def register(exercise: Exercise) -> Exercise:
        for method in methods:
            assert method not in EXERCISES, method
            EXERCISES[method] = exercise
        return exercise

    return register


# ---- ServiceClient


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


# ---- TrainingClient


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


# ---- SamplingClient


@proves("SamplingClient.sample")
def _(w: World) -> None:
    result = w.sampling.sample(
        w.prompt(), 2, w.params(4), include_prompt_logprobs=True, topk_prompt_logprobs=2
    ).result()
    assert [len(sequence.tokens) for sequence in result.sequences] == [4, 4]
    assert [len(sequence.logprobs) for sequence in result.sequences] == [4, 4]
    assert result.prompt_logprobs[0] is None
    assert len(result.prompt_logprobs) == len(PROMPT)
    assert all(len(row) == 2 for row in result.topk_prompt_logprobs[1:])


@proves("SamplingClient.sample_async")
def _(w: World) -> None:
    result = w.run(
        w.sampling.sample_async(
            w.prompt(), 1, w.params(), topk_sample_logprobs=3, prompt_alt_tokens_k=2
        )
    )
    assert result.sequences[0].stop_reason == "length"
    again = w.sampling.sample(w.prompt(), 1, w.params()).result()
    assert again.sequences[0].tokens == result.sequences[0].tokens


@proves("SamplingClient.compute_logprobs")
def _(w: World) -> None:
    whole = w.sampling.compute_logprobs(w.prompt()).result()
    assert whole[0] is None
    assert all(value <= 0 for value in whole[1:])


@proves("SamplingClient.compute_logprobs_async")
def _(w: World) -> None:
    last = w.run(w.sampling.compute_logprobs_async(w.prompt(), prompt_logprobs_last_n=2))
    assert [value is None for value in last] == [True, True, True, False, False]


@proves("SamplingClient.get_base_model")
def _(w: World) -> None:
    assert w.sampling.get_base_model() == w.base_model


@proves("SamplingClient.get_base_model_async")
def _(w: World) -> None:
    assert w.run(w.sampling.get_base_model_async()) == w.base_model


@proves("SamplingClient.get_tokenizer")
def _(w: World) -> None:
    assert w.sampling.get_tokenizer().encode("A")


@proves("SamplingClient.get_sampler_handle", "SamplingClient.from_sampler_handle")
def _(w: World) -> None:
    if w.base_url == "local":
        w.assert_stays_in_process(w.sampling)
        return
    handle = w.sampling.get_sampler_handle()
    assert w.api_key not in handle
    copy = w.sdk.SamplingClient.from_sampler_handle(handle, api_key=w.api_key)
    ours = w.sampling.sample(w.prompt(), 1, w.params()).result().sequences[0].tokens
    assert copy.sample(w.prompt(), 1, w.params()).result().sequences[0].tokens == ours


@proves("SamplingClient.create")
def _(w: World) -> None:
    client = w.sdk.SamplingClient.create(w.service.holder, base_model=w.base_model).result()
    assert client.get_base_model() == w.base_model


@proves("SamplingClient.on_queue_state_change")
def _(w: World) -> None:
    assert callable(w.sampling.on_queue_state_change)


# ---- futures


@proves("APIFuture.result", "APIFuture.result_async")
def _(w: World) -> None:
    future = w.training.forward([w.datum()], "cross_entropy")
    assert future.result(timeout=60).metrics == w.run(_awaited(future)).metrics


async def _awaited(future: Any) -> Any:
    return await future.result_async(timeout=60)


# ---- RestClient: runs


@proves("RestClient.get_training_run")
def _(w: World) -> None:
    run = w.rest.get_training_run(w.training.model_id).result()
    assert (run.base_model, run.lora_rank, run.is_lora) == (w.base_model, 4, True)
    assert run.user_metadata == {"purpose": "compat"}


@proves("RestClient.get_training_run_async")
def _(w: World) -> None:
    run = w.run(w.rest.get_training_run_async(w.training.model_id, access_scope="accessible"))
    assert run.training_run_id == w.training.model_id


@proves("RestClient.get_training_run_by_tinker_path")
def _(w: World) -> None:
    run = w.rest.get_training_run_by_tinker_path(w.state_path).result()
    assert run.last_checkpoint is not None


@proves("RestClient.get_training_run_by_tinker_path_async")
def _(w: World) -> None:
    run = w.run(w.rest.get_training_run_by_tinker_path_async(w.state_path))
    assert run.training_run_id == w.training.model_id


@proves("RestClient.list_training_runs")
def _(w: World) -> None:
    assert w.training.model_id
    page = w.rest.list_training_runs(limit=1, offset=0).result()
    assert len(page.training_runs) == 1
    assert page.cursor.total_count >= 1


@proves("RestClient.list_training_runs_async")
def _(w: World) -> None:
    page = w.run(w.rest.list_training_runs_async(limit=100))
    assert w.training.model_id in [run.training_run_id for run in page.training_runs]


# ---- RestClient: checkpoints


@proves("RestClient.list_checkpoints")
def _(w: World) -> None:
    path = w.state_path
    found = w.rest.list_checkpoints(w.training.model_id).result().checkpoints
    (kept,) = [checkpoint for checkpoint in found if checkpoint.tinker_path == path]
    assert (kept.checkpoint_type, kept.checkpoint_id) == ("training", "weights/kept")
    assert kept.size_bytes > 0


@proves("RestClient.list_checkpoints_async")
def _(w: World) -> None:
    path = w.sampler_path()
    found = w.run(w.rest.list_checkpoints_async(w.training.model_id)).checkpoints
    assert path in [checkpoint.tinker_path for checkpoint in found]


@proves("RestClient.list_user_checkpoints")
def _(w: World) -> None:
    path = w.fresh_state_path()
    page = w.rest.list_user_checkpoints(limit=1).result()
    assert [checkpoint.tinker_path for checkpoint in page.checkpoints] == [path]
    assert page.cursor.total_count >= 1


@proves("RestClient.list_user_checkpoints_async")
def _(w: World) -> None:
    path = w.fresh_state_path()
    page = w.run(w.rest.list_user_checkpoints_async(limit=1000))
    assert path in [checkpoint.tinker_path for checkpoint in page.checkpoints]


@proves("RestClient.get_weights_info_by_tinker_path")
def _(w: World) -> None:
    info = w.rest.get_weights_info_by_tinker_path(w.state_path).result()
    assert (info.base_model, info.lora_rank, info.train_mlp) == (w.base_model, 4, True)


@proves("RestClient.get_external_weights_urls")
def _(w: World) -> None:
    found = w.rest.get_external_weights_urls(w.external_path()).result()
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(found.urls)
    assert found.expires > datetime.datetime.now(datetime.UTC)
    assert b'"r"' in w.fetch(found.urls["adapter_config.json"])


@proves("RestClient.get_external_weights_urls_async")
def _(w: World) -> None:
    assert w.run(w.rest.get_external_weights_urls_async(w.external_path())).urls


@proves("RestClient.delete_checkpoint")
def _(w: World) -> None:
    path = w.fresh_state_path()
    w.rest.delete_checkpoint(w.training.model_id, path.split("/", 3)[3]).result()
    w.assert_gone(path)


@proves("RestClient.delete_checkpoint_async")
def _(w: World) -> None:
    path = w.fresh_state_path()
    w.run(w.rest.delete_checkpoint_async(w.training.model_id, path.split("/", 3)[3]))
    w.assert_gone(path)


@proves("RestClient.delete_checkpoint_from_tinker_path")
def _(w: World) -> None:
    path = w.sampler_path()
    w.rest.delete_checkpoint_from_tinker_path(path).result()
    w.assert_gone(path)


@proves("RestClient.delete_checkpoint_from_tinker_path_async")
def _(w: World) -> None:
    path = w.external_path()
    w.run(w.rest.delete_checkpoint_from_tinker_path_async(path))
    w.assert_gone(path)


@proves(
    "RestClient.publish_checkpoint_from_tinker_path",
    "RestClient.unpublish_checkpoint_from_tinker_path",
)
def _(w: World) -> None:
    path = w.fresh_state_path()
    w.rest.publish_checkpoint_from_tinker_path(path).result()
    assert w.checkpoint(path).public
    w.rest.unpublish_checkpoint_from_tinker_path(path).result()
    assert not w.checkpoint(path).public


@proves(
    "RestClient.publish_checkpoint_from_tinker_path_async",
    "RestClient.unpublish_checkpoint_from_tinker_path_async",
)
def _(w: World) -> None:
    path = w.fresh_state_path()
    w.run(w.rest.publish_checkpoint_from_tinker_path_async(path))
    assert w.checkpoint(path).public
    w.run(w.rest.unpublish_checkpoint_from_tinker_path_async(path))
    assert not w.checkpoint(path).public


@proves("RestClient.set_checkpoint_ttl_from_tinker_path")
def _(w: World) -> None:
    path = w.fresh_state_path()
    assert w.checkpoint(path).expires_at is not None
    w.rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert w.checkpoint(path).expires_at is None


@proves("RestClient.set_checkpoint_ttl_from_tinker_path_async")
def _(w: World) -> None:
    path = w.fresh_state_path()
    w.run(w.rest.set_checkpoint_ttl_from_tinker_path_async(path, 86_400))
    left = w.checkpoint(path).expires_at - datetime.datetime.now(datetime.UTC)
    assert 86_000 < left.total_seconds() <= 86_400


@proves("RestClient.copy_weights")
def _(w: World) -> None:
    path = w.rest.copy_weights(w.state_path, "project-1", ttl_seconds=3600).result()
    assert w.rest.get_training_run_by_tinker_path(path).result().lora_rank == 4


@proves("RestClient.copy_weights_async")
def _(w: World) -> None:
    path = w.run(w.rest.copy_weights_async(w.state_path))
    client = w.service.create_training_client_from_state(path)
    original = w.service.create_training_client_from_state(w.state_path)
    assert w.training_logprobs(client) == w.training_logprobs(original)


# ---- RestClient: sessions


@proves("RestClient.list_sessions", "RestClient.list_sessions_async")
def _(w: World) -> None:
    assert w.session_id in w.rest.list_sessions(limit=100).result().sessions
    assert len(w.run(w.rest.list_sessions_async(limit=1, offset=0)).sessions) == 1


@proves("RestClient.get_session")
def _(w: World) -> None:
    session = w.rest.get_session(w.session_id).result()
    assert w.training.model_id in session.training_run_ids
    assert session.user_metadata == {"job": "compat"}


@proves("RestClient.get_session_async")
def _(w: World) -> None:
    assert w.sampling
    session = w.run(w.rest.get_session_async(w.session_id, access_scope="accessible"))
    assert session.sampler_ids


@proves("RestClient.search_sessions")
def _(w: World) -> None:
    assert w.training
    request = w.types.SessionSearchRequest(display_name="MATRIX compat", limit=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = w.rest.search_sessions(request).result().sessions
    assert w.session_id in [summary.session_id for summary in found]


@proves("RestClient.search_sessions_async")
def _(w: World) -> None:
    assert w.training
    request = w.types.SessionSearchRequest(user_metadata={"job": "compat"}, limit=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        page = w.run(w.rest.search_sessions_async(request))
    assert [summary.status.type for summary in page.sessions] == ["active"]


@proves("RestClient.assign_session_project", "RestClient.assign_session_project_async")
def _(w: World) -> None:
    w.rest.assign_session_project(w.session_id, "project-7").result()
    w.run(w.rest.assign_session_project_async(w.session_id, "project-8"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        request = w.types.SessionSearchRequest(project_ids=["project-8"])
        found = w.rest.search_sessions(request).result().sessions
    assert w.session_id in [summary.session_id for summary in found]
    assert {summary.project_id for summary in found} == {"project-8"}


@proves("RestClient.export_session_trace")
def _(w: World) -> None:
    w.training_logprobs(w.training)
    trace = w.fetch(w.rest.export_session_trace(w.session_id).result())
    assert b"traceEvents" in trace
    assert w.training.model_id.encode() in trace


@proves("RestClient.export_session_trace_async")
def _(w: World) -> None:
    assert b"traceEvents" in w.fetch(w.run(w.rest.export_session_trace_async(w.session_id)))


@proves("RestClient.get_sampler")
def _(w: World) -> None:
    sampler = w.rest.get_sampler(w.sampling._sampling_session_id).result()
    assert sampler.base_model == w.base_model


@proves("RestClient.get_sampler_async")
def _(w: World) -> None:
    path = w.sampler_path()
    client = w.service.create_sampling_client(model_path=path)
    assert w.run(w.rest.get_sampler_async(client._sampling_session_id)).model_path == path


@proves("RestClient.whoami")
def _(w: World) -> None:
    key = unsigned_jwt("tml:organization_user:ada")
    rest = w.sdk.RestClient(base_url=w.base_url, api_key=key)
    assert rest.whoami().result().user_urn == "tml:organization_user:ada"


# ---- audit and billing, on both clients that offer them


def _both(method: str) -> tuple[str, str]:
    return f"RestClient.{method}", f"AdminClient.{method}"


def _quietly(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


@proves(*_both("get_audit_log"))
def _(w: World) -> None:
    path = w.fresh_state_path()
    for client in (w.rest, w.admin):
        entries = _quietly(lambda c=client: c.get_audit_log("checkpoints").result()).entries
        assert path in [entry.tinker_path for entry in entries]


@proves(*_both("get_audit_log_async"))
def _(w: World) -> None:
    assert w.fresh_state_path()
    today = datetime.datetime.now(datetime.UTC).date()
    for client in (w.rest, w.admin):
        found = _quietly(lambda c=client: w.run_audit(c, c.get_audit_log_async(day=today)))
        assert found.entries


def _window() -> tuple[datetime.datetime, datetime.datetime]:
    hour = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    return hour - datetime.timedelta(hours=1), hour + datetime.timedelta(hours=1)


@proves(*_both("get_billing_usage"))
def _(w: World) -> None:
    w.training_logprobs(w.training)
    w.sampling.compute_logprobs(w.prompt()).result()
    for client in (w.rest, w.admin):
        usage = _quietly(lambda c=client: c.get_billing_usage(*_window()).result())
        kinds = {event.event_info.type for event in usage.data}
        assert {"training", "sampling_prefill"} <= kinds
        assert w.session_id in usage.sessions


@proves(*_both("get_billing_usage_async"))
def _(w: World) -> None:
    for client in (w.rest, w.admin):
        usage = _quietly(lambda c=client: w.run(c.get_billing_usage_async(*_window())))
        assert all(event.estimated_cost_usd is None for event in usage.data)


@proves(*_both("get_current_checkpoint_storage_usage"))
def _(w: World) -> None:
    assert w.state_path
    for client in (w.rest, w.admin):
        data = _quietly(lambda c=client: c.get_current_checkpoint_storage_usage().result()).data
        assert sum(item.size_bytes for item in data) > 0


@proves(*_both("get_current_checkpoint_storage_usage_async"))
def _(w: World) -> None:
    for client in (w.rest, w.admin):
        found = _quietly(lambda c=client: w.run(c.get_current_checkpoint_storage_usage_async("no")))
        assert found.data == []
