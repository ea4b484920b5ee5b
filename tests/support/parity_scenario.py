"""What a user's script does, with either SDK: run as ``python parity_scenario.py SDK URL``.

Prints one JSON object of results, so that both SDKs' answers can be compared as well.
"""

import asyncio
import importlib
import json
import sys
import warnings
from typing import Any


def datum(sdk: Any, *tokens: int) -> Any:
    targets = [*tokens[1:], 0]
    return sdk.types.Datum(
        model_input=sdk.types.ModelInput.from_ints(list(tokens)),
        loss_fn_inputs={"target_tokens": targets, "weights": [1.0] * len(tokens)},
    )


def custom_loss(data: Any, logprobs: Any) -> Any:
    loss = sum((values * values).sum() for values in logprobs)
    return loss, {"mine:sum": 3.0}


def train(sdk: Any, service: Any, results: dict[str, Any]) -> Any:
    training = service.create_lora_training_client(
        "acme/tiny", rank=8, seed=3, user_metadata={"a": "b"}
    )
    batch = [datum(sdk, i, i + 1, i + 2) for i in range(1, 8)]
    forward_backward = training.forward_backward(batch, "cross_entropy")
    step = training.optim_step(sdk.types.AdamParams(learning_rate=2e-4, grad_clip_norm=1.0))
    result = forward_backward.result()
    results["loss"] = result.metrics["loss:sum"]
    results["outputs"] = [o["logprobs"].tolist() for o in result.loss_fn_outputs]
    results["optim"] = step.result().metrics
    config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    ppo = training.forward(batch[:1], "ppo", config).result()
    results["forward"] = ppo.metrics["loss:sum"]
    custom = training.forward_backward_custom(batch[:2], custom_loss).result()
    results["custom"] = [custom.metrics["loss:sum"], custom.metrics["mine:sum"]]
    results["info"] = training.get_info().model_data.tokenizer_id
    return training


def save_and_load(sdk: Any, service: Any, training: Any, results: dict[str, Any]) -> None:
    saved = training.save_state("one", ttl_seconds=3600, user_metadata={"k": "v"}).result()
    results["saved"] = saved.path
    results["external"] = training.save_weights_external("out").result().path
    again = service.create_training_client_from_state(saved.path)
    results["again"] = again.model_id
    full = service.create_training_client_from_state_with_optimizer(saved.path)
    results["full"] = full.model_id


def sample(sdk: Any, service: Any, training: Any, results: dict[str, Any]) -> None:
    path = training.save_weights_for_sampler("s1").result().path
    named = service.create_sampling_client(model_path=path)
    prompt = sdk.types.ModelInput.from_ints([5, 6, 7])
    params = sdk.types.SamplingParams(max_tokens=3, temperature=0.5, seed=9, stop=["x"])
    response = named.sample(prompt, 2, params, include_prompt_logprobs=True).result()
    results["tokens"] = [sequence.tokens for sequence in response.sequences]
    results["sequence_ids"] = [sequence.sequence_id for sequence in response.sequences]
    results["logprobs"] = named.compute_logprobs(prompt).result()
    ephemeral = training.save_weights_and_get_sampling_client()
    results["base"] = ephemeral.get_base_model()
    results["async"] = asyncio.run(_async(sdk, ephemeral, prompt, params))


async def _async(sdk: Any, sampler: Any, prompt: Any, params: Any) -> Any:
    response = await sampler.sample_async(prompt, 1, params)
    return response.sequences[0].tokens


def records(sdk: Any, base_url: str, results: dict[str, Any]) -> None:
    rest = sdk.RestClient(base_url=base_url, api_key="tml-parity")
    path = "tinker://s1:train:0/weights/one"
    results["run"] = rest.get_training_run("s1:train:0").result().lora_rank
    results["by_path"] = rest.get_training_run_by_tinker_path(path).result().base_model
    results["runs"] = len(rest.list_training_runs(limit=5, offset=1).result().training_runs)
    results["checkpoints"] = len(rest.list_checkpoints("s1:train:0").result().checkpoints)
    results["mine"] = len(rest.list_user_checkpoints().result().checkpoints)
    rest.publish_checkpoint_from_tinker_path(path).result()
    rest.unpublish_checkpoint_from_tinker_path(path).result()
    rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result()
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    rest.delete_checkpoint("s1:train:0", "weights/one").result()
    rest.delete_checkpoint_from_tinker_path(path).result()
    external = "tinker://s1:train:0/external_weights/out"
    results["urls"] = sorted(rest.get_external_weights_urls(external).result().urls)
    results["info"] = rest.get_weights_info_by_tinker_path(path).result().lora_rank
    results["copied"] = rest.copy_weights(path, "p1", ttl_seconds=3600).result()
    results["sessions"] = rest.list_sessions().result().sessions
    results["session"] = rest.get_session("s1").result().training_run_ids
    rest.assign_session_project("s1", "p2").result()
    results["trace"] = rest.export_session_trace("s1").result()
    results["sampler"] = rest.get_sampler("s1:sample:0").result().base_model
    admin = sdk.AdminClient(base_url=base_url, api_key="tml-parity")
    results["audit"] = len(admin.get_audit_log("checkpoints").result().entries)
    admin.get_billing_usage("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z").result()
    admin.get_current_checkpoint_storage_usage("p1").result()


def main(name: str, base_url: str) -> None:
    warnings.simplefilter("ignore")
    sdk = importlib.import_module(name)
    results: dict[str, Any] = {}
    service = sdk.ServiceClient(
        user_metadata={"job": "parity"}, base_url=base_url, api_key="tml-parity"
    )
    with service:
        training = train(sdk, service, results)
        save_and_load(sdk, service, training, results)
        sample(sdk, service, training, results)
        results["models"] = len(service.get_server_capabilities().supported_models)
        records(sdk, base_url, results)
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
