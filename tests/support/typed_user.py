"""What typed user code looks like: checked by mypy, never run. See tests/client/test_typing.py."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import numpy as np
import torch

import tinkex
from tinkex import types


def plain_lists(tokens: list[int]) -> tinkex.Datum:
    weights = [1.0] * (len(tokens) - 1)
    return tinkex.Datum(
        model_input=tinkex.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights},
    )


def arrays_and_tensors(tokens: list[int], advantages: torch.Tensor) -> types.Datum:
    datum = types.Datum(
        types.ModelInput.from_ints(tokens[:-1]),
        {
            "target_tokens": np.array(tokens[1:]),
            "advantages": advantages,
            "logprobs": types.TensorData.from_numpy(np.zeros(len(tokens) - 1)),
        },
    )
    datum.loss_fn_inputs["advantages"] = types.TensorData.from_torch(advantages * 2)
    return datum


def train(service: tinkex.ServiceClient, data: list[tinkex.Datum]) -> float:
    training = service.create_lora_training_client("some/model", rank=8, seed=1)
    gradients = training.forward_backward(data, "cross_entropy")
    update: tinkex.APIFuture[tinkex.OptimStepResponse] = training.optim_step(
        tinkex.AdamParams(learning_rate=1e-4)
    )
    update.result(timeout=60)
    logprobs: torch.Tensor = gradients.result().loss_fn_outputs[0]["logprobs"].to_torch()
    path: str = training.save_state("final", ttl_seconds=3600).result().path
    training.load_state(path).result()
    return gradients.result().metrics["loss:sum"] / logprobs.numel()


def pairwise(
    data: list[tinkex.Datum], logprobs: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    loss = torch.stack([row.sum() for row in logprobs]).mean()
    return loss, {"margin": float(loss)}


async def train_async(service: tinkex.ServiceClient, data: list[tinkex.Datum]) -> list[int]:
    training = await service.create_lora_training_client_async("some/model")
    submitted = await training.forward_backward_custom_async(data, pairwise)
    loss: float = (await submitted).metrics["margin"]
    assert loss > 0
    await (await training.optim_step_async(types.AdamParams())).result_async(timeout=60.0)
    sampler = await training.save_weights_and_get_sampling_client_async()
    answer = await sampler.sample_async(
        prompt=types.ModelInput.empty().append_int(1),
        num_samples=2,
        sampling_params=types.SamplingParams(max_tokens=8, stop=["\n"], temperature=0.7),
    )
    reasons: list[types.StopReason] = [one.stop_reason for one in answer.sequences]
    assert reasons
    return answer.sequences[0].tokens


def sample(sampler: tinkex.SamplingClient, tokens: list[int]) -> list[float | None]:
    prompt = tinkex.ModelInput(chunks=[tinkex.EncodedTextChunk(tokens=tokens)])
    waiting: Future[tinkex.SampleResponse] = sampler.sample(
        prompt, 1, tinkex.SamplingParams(max_tokens=4), include_prompt_logprobs=True
    )
    if waiting.result(timeout=60).prompt_logprobs is None:
        raise RuntimeError("asked for prompt logprobs")
    return sampler.compute_logprobs(prompt).result()


def look(service: tinkex.ServiceClient) -> list[str]:
    rest = tinkex.RestClient()
    runs = rest.list_training_runs(limit=10).result().training_runs
    names = [run.base_model for run in runs if run.lora_rank is not None]
    try:
        rest.delete_checkpoint_from_tinker_path("tinker://run/weights/name").result()
    except tinkex.NotFoundError as error:
        names.append(str(error.status_code))
    except tinkex.TinkerError as error:
        names.append(str(error))
    return names + [
        model.model_name or "" for model in service.get_server_capabilities().supported_models
    ]


def main() -> None:
    with tinkex.ServiceClient(user_metadata={"run": "typed"}, base_url="local") as service:
        print(train(service, [plain_lists([1, 2, 3])]), look(service))
        print(asyncio.run(train_async(service, [plain_lists([1, 2, 3])])))
