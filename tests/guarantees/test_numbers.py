"""Guarantees about the numbers themselves, through the whole stack: client, HTTP, log, engine."""

from __future__ import annotations

import contextlib
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers

import tinkex
from support.guarantee_data import batch, logprobs, saved_folder, step
from support.server_process import MODEL, ServerProcess
from tinkex import types

pytestmark = pytest.mark.slow

ADAM = types.AdamParams(learning_rate=1e-2)


def _new(service: Any, seed: int = 3, rank: int = 4) -> Any:
    return service.create_lora_training_client(MODEL, rank=rank, seed=seed)


def test_guarantee_01_split_invariance(service: Any) -> None:
    """One call with 8 datums is the same gradient as two with 4, or any other cut of them."""
    data, norms = batch(1), []
    for cuts in ([8], [4, 4], [1, 7], [3, 2, 3], [1] * 8):
        client, start, loss = _new(service), 0, 0.0
        calls = []
        for size in cuts:
            calls.append(client.forward_backward(data[start : start + size], "cross_entropy"))
            start += size
        update = client.optim_step(ADAM)
        loss = sum(call.result().metrics["loss:sum"] for call in calls)
        norms.append((loss, update.result().metrics["optim/grad_norm"]))
    for loss, norm in norms[1:]:
        assert loss == pytest.approx(norms[0][0], rel=1e-5)
        assert norm == pytest.approx(norms[0][1], rel=1e-4)


async def test_guarantee_02_order_and_length(service: Any) -> None:
    """Results come per datum, in order, each as long as its targets, though everything was queued
    before the first await and calls were cut into chunks."""
    client = await service.create_lora_training_client_async(MODEL, rank=4, seed=1)
    batches = [batch(number, 5 + number) for number in range(6)]
    queued = [await client.forward_async(data, "cross_entropy") for data in batches]
    apart = []
    for data in batches:
        singles = [await client.forward_async([one], "cross_entropy") for one in data]
        apart.append([logprobs(await single)[0] for single in singles])
    for data, future, expected in zip(batches, queued, apart, strict=True):
        found = logprobs(await future)
        assert [len(row) for row in found] == [one.model_input.length for one in data]
        assert found == expected


def test_guarantee_03_tenant_isolation(server: ServerProcess, service: Any) -> None:
    """Another tenant's traffic, however wild, changes no bit of a run's losses and weights."""
    alone = _train(service, "isolation-alone")
    with tinkex.ServiceClient(base_url=server.url, api_key="tml-mallory") as other:
        noisy = other.create_lora_training_client(MODEL, rank=32, seed=9)
        noise: list[Any] = []
        for number in range(12):
            noise.append(noisy.forward_backward(batch(100 + number, 6), "cross_entropy"))
            noise.append(noisy.optim_step(types.AdamParams(learning_rate=9.0)))
        beside = _train(service, "isolation-beside")
        for future in noise:
            # With such steps a loss may overflow: that is for its own tenant to hear.
            with contextlib.suppress(tinkex.RequestFailedError):
                future.result()
    assert beside == alone
    assert server.weights_digest("isolation-beside") == server.weights_digest("isolation-alone")


def _train(service: Any, name: str) -> list[Any]:
    client = _new(service, seed=5)
    results = [step(client, batch(number, 4)) for number in range(6)]
    client.save_state(name).result()
    return [(result.metrics["loss:sum"], logprobs(result)) for result in results]


def test_guarantee_04_alone_equals_co_batched(service: Any) -> None:
    """A call gives the same bits alone and packed into one batch with calls of other runs."""
    runs = [_new(service, seed=20 + index, rank=2 << index) for index in range(4)]
    data = [batch(10 * index, 1 + 2 * index) for index in range(4)]
    pairs = list(zip(runs, data, strict=True))
    alone = [run.forward(part, "cross_entropy").result() for run, part in pairs]
    for _ in range(5):
        futures = [run.forward(part, "cross_entropy") for run, part in pairs]
        for before, future in zip(alone, futures, strict=True):
            assert logprobs(future.result()) == logprobs(before)


def test_guarantee_06_resumed_with_optimizer_equals_uninterrupted(
    server: ServerProcess, service: Any
) -> None:
    """Save, load with the optimizer, go on: the very bits of never having stopped. Without the
    optimizer it is another run."""
    whole = _new(service, seed=6)
    for number in range(3):
        step(whole, batch(number, 4))
    path = whole.save_state("resume-middle").result().path
    clients = {
        "resume-whole": whole,
        "resume-full": service.create_training_client_from_state_with_optimizer(path),
        "resume-bare": service.create_training_client_from_state(path),
    }
    losses = {
        name: [step(client, batch(number, 4)).metrics["loss:sum"] for number in range(3, 6)]
        for name, client in clients.items()
    }
    for name, client in clients.items():
        client.save_state(name).result()
    assert losses["resume-full"] == losses["resume-whole"]
    assert server.weights_digest("resume-full") == server.weights_digest("resume-whole")
    assert losses["resume-bare"][0] == losses["resume-whole"][0]
    assert losses["resume-bare"][2] != losses["resume-whole"][2]


@pytest.mark.filterwarnings("ignore")
def test_guarantee_07_parity_with_transformers_and_peft(
    server: ServerProcess, service: Any, tiny_llama: Path
) -> None:
    """Steps through the server are the steps of a plain torch loop over the same adapter."""
    client = _new(service, seed=7)
    client.save_state("parity-start").result()
    data = [batch(number, 4) for number in range(4)]
    losses = [step(client, part, 1e-3).metrics["loss:sum"] for part in data]
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    start = saved_folder(server.home, "parity-start")
    model = peft.PeftModel.from_pretrained(base, str(start), is_trainable=True)
    parameters = [one for one in model.parameters() if one.requires_grad]
    adam = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
    for part, own in zip(data, losses, strict=True):
        loss = sum((_peft_loss(model, one) for one in part), torch.zeros(()))
        loss.backward()
        adam.step()
        adam.zero_grad()
        assert own == pytest.approx(loss.item(), rel=1e-4)


def _peft_loss(model: Any, one: types.Datum) -> torch.Tensor:
    tokens = torch.tensor([one.model_input.to_ints()])
    targets = torch.from_numpy(np.array(one.loss_fn_inputs["target_tokens"].tolist()))
    found = torch.log_softmax(model(input_ids=tokens).logits[0].float(), dim=-1)
    return -found[torch.arange(len(targets)), targets].sum()


def test_guarantee_08_trainer_and_sampler_agree(service: Any) -> None:
    """The sampler's logprobs of a text are the trainer's, with the same weights; the largest gap
    is printed with `pytest -s`."""
    client = _new(service, seed=8)
    for number in range(3):
        step(client, batch(number, 4))
    sampler = client.save_weights_and_get_sampling_client()
    gap = 0.0
    for one in batch(0, 6):
        tokens = one.model_input.to_ints()
        inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
        shifted = types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs)
        trained = logprobs(client.forward([shifted], "cross_entropy").result())[0]
        sampled = sampler.compute_logprobs(types.ModelInput.from_ints(tokens)).result()[1:]
        gap = max(gap, float(np.abs(np.array(trained) - np.array(sampled)).max()))
    print(f"largest gap between trainer and sampler: {gap:.2e}")
    assert gap < 1e-4


def test_guarantee_08_the_gap_is_reported_per_run(server: ServerProcess, service: Any) -> None:
    """Training on what the run's own newest sampler said measures how far the two are apart; after
    a step, when the weights are others, nothing is measured any more."""
    rest = tinkex.RestClient(base_url=server.url, api_key="tml-alice")
    client = _new(service, seed=9)
    step(client, batch(1, 4))
    sampled = _rollout(client.save_weights_and_get_sampling_client())
    assert rest.get_training_run(client.model_id).result().sampler_gap is None
    client.forward_backward([sampled], "importance_sampling").result()
    told = rest.get_training_run(client.model_id).result().sampler_gap
    assert (told.tokens, told.mean <= told.max < 1e-4) == (NEW_TOKENS, True)
    client.optim_step(types.AdamParams(learning_rate=0.1)).result()
    drifted = client.forward_backward([sampled], "importance_sampling").result()
    given = np.array(sampled.loss_fn_inputs["logprobs"].tolist())
    assert np.abs(logprobs(drifted)[0] - given)[given != 0].max() > 1e-2
    assert rest.get_training_run(client.model_id).result().sampler_gap == told
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as page:
        assert "tinkex_sampler_gap_nats " in page.read().decode()
    assert "sampler_gap" not in rest.get_training_run(client.model_id).result().model_dump()
    rest.holder.close()


NEW_TOKENS = 12


def _rollout(sampler: Any) -> Any:
    """What reinforcement learning makes of one sample; a prompt's logprobs are zero in it."""
    prompt = list(range(3, 30, 2))
    params = types.SamplingParams(max_tokens=NEW_TOKENS, temperature=1.0, seed=5, stop=[])
    (said,) = sampler.sample(types.ModelInput.from_ints(prompt), 1, params).result().sequences
    tokens, silent = prompt + said.tokens, [0.0] * (len(prompt) - 1)
    inputs = {
        "target_tokens": tokens[1:],
        "logprobs": silent + said.logprobs,
        "advantages": silent + [1.0] * NEW_TOKENS,
    }
    return types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs)
