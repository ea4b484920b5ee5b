"""A program as a researcher writes one for the official SDK: it imports `tinker`, nothing of ours.

It prints what it sees, rounded, so that the same program on another SDK or address must print the
same. Run by test_scripts.py; the address and key come from the environment.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from typing import Any

import numpy as np
import tinker
import torch
from tinker import types

MODEL = "tinkex/tiny-llama"


def datum(tokens: list[int]) -> types.Datum:
    weights = [1.0] * (len(tokens) - 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights},
    )


async def pipelined(service: Any) -> list[Any]:
    """Twelve steps submitted before the first is awaited, with a learning-rate schedule."""
    run = await service.create_lora_training_client_async(MODEL, rank=8, seed=3)
    data = [datum(list(range(10 + n, 40 + n))) for n in range(4)]
    pending = []
    for step in range(12):
        rate = 1e-3 * (1 - step / 12)
        gradients = await run.forward_backward_async(data, "cross_entropy")
        update = await run.optim_step_async(types.AdamParams(learning_rate=rate))
        pending.append((gradients, update))
    losses = [(await gradients).metrics["loss:sum"] for gradients, _ in pending]
    await asyncio.gather(*[update.result_async() for _, update in reversed(pending)])
    return [round(losses[0], 1), round(losses[-1], 1)]


def policy_gradient(service: Any, loss: str, config: dict[str, float] | None) -> list[Any]:
    """Groups of samples become advantages; the trainer must agree with the sampler's logprobs."""
    run = service.create_lora_training_client(MODEL, rank=8, seed=1)
    sampler = run.save_weights_and_get_sampling_client()
    prompt = list(range(20, 30))
    params = types.SamplingParams(max_tokens=8, temperature=1.0, seed=7)
    group = sampler.sample(types.ModelInput.from_ints(prompt), 4, params).result().sequences
    rewards = np.array([sum(token % 2 == 0 for token in one.tokens) for one in group])
    data = []
    for one, advantage in zip(group, rewards - rewards.mean(), strict=True):
        before, tokens = len(prompt) - 1, prompt + list(one.tokens)
        logprobs = torch.tensor([0.0] * before + list(one.logprobs))
        inputs = {
            "target_tokens": torch.tensor(tokens[1:]),
            "logprobs": types.TensorData.from_torch(logprobs),
            "advantages": np.array([0.0] * before + [advantage] * len(one.tokens)),
        }
        data.append(types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs))
    result = run.forward_backward(data, loss, config).result()
    run.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    drift = max(
        abs(ours - theirs)
        for output, one in zip(result.loss_fn_outputs, group, strict=True)
        for ours, theirs in zip(output["logprobs"].data[before:], one.logprobs, strict=True)
    )
    return [sorted(result.metrics), [list(one.tokens) for one in group], drift < 1e-3]


def preferences(service: Any) -> list[Any]:
    """A pairwise loss of the program's own against a frozen reference."""
    run = service.create_lora_training_client(MODEL, rank=4, seed=2)
    reference = service.create_sampling_client(base_model=MODEL)
    good, bad = list(range(10, 20)), list(range(19, 9, -1))
    known = [reference.compute_logprobs(types.ModelInput.from_ints(one)) for one in (good, bad)]
    frozen = [torch.tensor(future.result()[1:]).sum() for future in known]

    def loss(_: Any, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        chosen, rejected = (row.sum() - base for row, base in zip(logprobs, frozen, strict=True))
        value = -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected))
        return value, {"preference": float(value)}

    seen = []
    for _ in range(3):
        result = run.forward_backward_custom([datum(good), datum(bad)], loss).result()
        run.optim_step(types.AdamParams(learning_rate=1e-3)).result()
        seen.append(round(result.metrics["preference"], 3))
    return seen


def resumed(service: Any) -> list[bool]:
    """A run that goes on from its checkpoint, with and without its optimizer."""
    data = [datum(list(range(10, 30)))]

    def steps(run: Any, count: int) -> Iterator[float]:
        for _ in range(count):
            gradients = run.forward_backward(data, "cross_entropy")
            run.optim_step(types.AdamParams(learning_rate=1e-2)).result()
            yield gradients.result().metrics["loss:sum"]

    run = service.create_lora_training_client(MODEL, rank=8, seed=5)
    list(steps(run, 3))
    path = run.save_state("three").result().path
    expected = list(steps(run, 2))
    exact = service.create_training_client_from_state_with_optimizer(path)
    fresh = service.create_training_client_from_state(path)
    again = list(steps(fresh, 2))
    return [list(steps(exact, 2)) == expected, again[0] == expected[0], again[1] == expected[1]]


def several_threads(service: Any) -> list[Any]:
    """Three runs, each trained from a thread, and many samples at once."""
    runs = [service.create_lora_training_client(MODEL, rank=4, seed=n) for n in range(3)]
    better: dict[int, bool] = {}

    def train(number: int) -> None:
        data, losses = [datum(list(range(10 + 7 * number, 30 + 7 * number)))], []
        for _ in range(4):
            gradients = runs[number].forward_backward(data, "cross_entropy")
            runs[number].optim_step(types.AdamParams(learning_rate=5e-3)).result()
            losses.append(gradients.result().metrics["loss:sum"])
        better[number] = losses[-1] < losses[0]

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sampler = service.create_sampling_client(base_model=MODEL)
    params = types.SamplingParams(max_tokens=2)
    prompts = [types.ModelInput.from_ints([1, n + 1]) for n in range(40)]
    futures = [sampler.sample(prompt, 1, params) for prompt in prompts]
    return [sorted(better.items()), len(list(as_completed(futures)))]


def soft_targets(service: Any) -> list[Any]:
    """A teacher's best tokens per position, and who answers when asked too much."""
    sampler = service.create_sampling_client(base_model=MODEL)
    prompt = types.ModelInput.from_ints(list(range(30, 50)))
    params = types.SamplingParams(max_tokens=1, temperature=0.0)
    found = sampler.sample(prompt, 1, params, True, topk_prompt_logprobs=5).result()
    best = [pairs[0][0] for pairs in found.topk_prompt_logprobs[1:]]
    return [found.prompt_logprobs[0], found.topk_prompt_logprobs[0], best]


def mistakes(service: Any) -> list[str]:
    """The kinds of error a program is written to catch."""
    run = service.create_lora_training_client(MODEL, rank=2)
    sampler = service.create_sampling_client(base_model=MODEL)
    prompt, params = types.ModelInput.from_ints([1]), types.SamplingParams(max_tokens=900, stop=[])
    calls: list[Callable[[], Any]] = [
        lambda: tinker.RestClient().get_training_run("nobody").result(),
        lambda: service.create_sampling_client(base_model="no/model"),
        lambda: service.create_training_client_from_state("tinker://nobody/weights/none"),
        lambda: run.forward_backward([], "cross_entropy").result(),
        lambda: run.forward_backward([datum([1, 10**6])], "cross_entropy").result(),
        lambda: sampler.sample(prompt, 64, params).result(timeout=0.001),
        lambda: too_long(sampler),
        lambda: run.forward_backward_custom([datum([1, 2])], lambda *_: 1 / 0).result(),
    ]
    return [kind(call) for call in calls]


def refusals(service: Any) -> list[str]:
    """How a program hears that it cannot be done, wherever that is noticed: not as a crash."""
    run = service.create_lora_training_client(MODEL, rank=2)
    sampler = service.create_sampling_client(base_model=MODEL)
    prompt, params = types.ModelInput.from_ints([1]), types.SamplingParams(max_tokens=1)
    nan = types.Datum(prompt, {"target_tokens": [1], "weights": [float("nan")]})
    calls: list[Callable[[], Any]] = [
        lambda: run.forward_backward([nan], "cross_entropy").result(),
        lambda: run.forward([types.Datum(types.ModelInput.empty(), {})], "cross_entropy").result(),
        lambda: run.forward_backward([datum([1, 10**6])], "cross_entropy").result(),
        lambda: sampler.sample(types.ModelInput.empty(), 1, params).result(),
        lambda: sampler.sample(prompt, 0, params).result(),
        lambda: sampler.sample(prompt, 10**6, params).result(),
        lambda: sampler.compute_logprobs(types.ModelInput.empty()).result(),
        lambda: service.create_lora_training_client(MODEL, rank=0),
        lambda: service.create_lora_training_client("", rank=4),
        lambda: service.create_training_client_from_state("no path"),
        lambda: tinker.RestClient().list_training_runs(limit=-1).result(),
    ]
    return [heard(call) for call in calls]


def heard(call: Callable[[], Any]) -> str:
    try:
        call()
    except tinker.RequestFailedError as error:
        return f"failed, {error.category.value}"
    except tinker.APIStatusError as error:
        return "refused" if 400 <= error.response.status_code < 500 else "broken"
    return "done"


def too_long(sampler: Any) -> None:
    """As agents' programs ask whether they must shorten what they send."""
    prompt = types.ModelInput.from_ints([1] * 5000)
    try:
        sampler.sample(prompt, 1, types.SamplingParams(max_tokens=7)).result()
    except tinker.APIStatusError as error:
        words = "Prompt length plus max_tokens exceeds the model's context window"
        if error.status_code == 400 and words in error.message:
            raise OverflowError from error
        raise


def kind(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def main() -> None:
    service = tinker.ServiceClient(user_metadata={"purpose": "compat"})
    print("pipelined", asyncio.run(pipelined(service)))
    clip = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    print("importance", policy_gradient(service, "importance_sampling", None))
    print("ppo", policy_gradient(service, "ppo", clip))
    print("preferences", preferences(service))
    print("resumed", resumed(service))
    print("threads", several_threads(service))
    print("soft targets", soft_targets(service))
    print("mistakes", mistakes(service))
    print("refusals", refusals(service))
    service.close("success").result()
    print("closed", flush=True)


if __name__ == "__main__":
    main()
