"""What leading open servers got wrong, each on the real engine: weights and tenants kept apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tinkex
from support.server_process import MODEL, ServerProcess
from tinkex import types

pytestmark = pytest.mark.slow

PROMPT = types.ModelInput.from_ints([5, 9, 13, 17, 21, 25])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("isolation") / "home", tiny_llama)
    server.start()
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture
def service(server: ServerProcess) -> Iterator[Any]:
    with tinkex.ServiceClient(base_url=server.url, api_key="tml-alice") as service:
        yield service


def _data(shift: int = 0) -> list[types.Datum]:
    tokens = [(shift + 4 * k) % 60 + 1 for k in range(10)]
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * 9}
    return [types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)]


def _step(client: Any, shift: int = 0, **adam: float) -> dict[str, float]:
    forward = client.forward_backward(_data(shift), "cross_entropy")
    update = client.optim_step(types.AdamParams(learning_rate=1e-2, **adam))
    update.result()
    metrics: dict[str, float] = forward.result().metrics
    return metrics


def test_an_old_sampler_keeps_its_numbers_while_training_goes_on(service: Any) -> None:
    client = service.create_lora_training_client(MODEL, rank=4, seed=1)
    _step(client)
    named = client.save_weights_for_sampler("early").result().path
    old = service.create_sampling_client(model_path=named)
    nameless = client.save_weights_and_get_sampling_client()
    before = old.compute_logprobs(PROMPT).result()
    for shift in range(3):
        _step(client, shift)
    assert old.compute_logprobs(PROMPT).result() == before
    assert nameless.compute_logprobs(PROMPT).result() == before
    again = service.create_sampling_client(model_path=named)
    assert again.compute_logprobs(PROMPT).result() == before
    late = client.save_weights_and_get_sampling_client()
    assert late.compute_logprobs(PROMPT).result() != before


def test_sampling_never_changes_a_run(server: ServerProcess, service: Any) -> None:
    digests = []
    for name, sampled in (("calm", False), ("sampled", True)):
        client = service.create_lora_training_client(MODEL, rank=4, seed=2)
        for shift in range(3):
            if sampled:
                sampler = client.save_weights_and_get_sampling_client()
                params = types.SamplingParams(max_tokens=8, temperature=1.0)
                sampler.sample(PROMPT, num_samples=3, sampling_params=params).result()
                other = service.create_sampling_client(base_model=MODEL)
                other.compute_logprobs(PROMPT).result()
            _step(client, shift)
        client.save_state(f"final-{name}").result()
        digests.append(server.weights_digest(f"final-{name}"))
    assert digests[0] == digests[1]


def test_one_tenants_steps_leave_anothers_weights_bit_equal(
    server: ServerProcess, service: Any
) -> None:
    alone = service.create_lora_training_client(MODEL, rank=4, seed=3)
    for shift in range(3):
        _step(alone, shift)
    alone.save_state("alone").result()
    with tinkex.ServiceClient(base_url=server.url, api_key="tml-bob") as bob:
        theirs = bob.create_lora_training_client(MODEL, rank=8, seed=9)
        mine = service.create_lora_training_client(MODEL, rank=4, seed=3)
        for shift in range(3):
            noise = theirs.forward_backward(_data(50) * 3, "cross_entropy")
            decay = theirs.optim_step(types.AdamParams(learning_rate=0.5, weight_decay=0.9))
            _step(mine, shift)
            noise.result()
            decay.result()
        mine.save_state("beside").result()
    assert server.weights_digest("alone") == server.weights_digest("beside")


def test_a_saved_sampler_works_after_its_run_is_gone(server: ServerProcess) -> None:
    with tinkex.ServiceClient(base_url=server.url, api_key="tml-alice") as first:
        client = first.create_lora_training_client(MODEL, rank=4, seed=4)
        _step(client)
        path = client.save_weights_for_sampler("left-behind").result().path
        before = first.create_sampling_client(model_path=path).compute_logprobs(PROMPT).result()
    with tinkex.ServiceClient(base_url=server.url, api_key="tml-alice") as second:
        sampler = second.create_sampling_client(model_path=path)
        assert sampler.compute_logprobs(PROMPT).result() == before


def test_layer_switches_and_clip_norms_do_what_they_say(service: Any) -> None:
    free = service.create_lora_training_client(MODEL, rank=4, seed=5)
    narrow = service.create_lora_training_client(
        MODEL, rank=4, seed=5, train_mlp=False, train_unembed=False
    )
    _step(free)
    _step(narrow)
    losses = [_step(client)["loss:sum"] for client in (free, narrow)]
    assert losses[0] != losses[1]
    clipped = service.create_lora_training_client(MODEL, rank=4, seed=5)
    loose = service.create_lora_training_client(MODEL, rank=4, seed=5)
    for client, norm in ((clipped, 1e-3), (loose, 0.0)):
        for shift in (0, 30):
            _step(client, shift, grad_clip_norm=norm)
    losses = [_step(client)["loss:sum"] for client in (clipped, loose)]
    assert losses[0] != losses[1]


def test_a_wrong_base_model_is_never_replaced_by_ours(service: Any) -> None:
    with pytest.raises(tinkex.APIStatusError, match="not served"):
        service.create_lora_training_client("meta-llama/Llama-3.1-8B", rank=4)
    with pytest.raises(tinkex.APIStatusError, match="not served"):
        service.create_sampling_client(base_model="meta-llama/Llama-3.1-8B")


def test_a_loss_that_cannot_be_computed_fails_by_name_and_changes_nothing(service: Any) -> None:
    client = service.create_lora_training_client(MODEL, rank=4, seed=6)
    twin = service.create_lora_training_client(MODEL, rank=4, seed=6)
    with pytest.raises(tinkex.RequestFailedError, match=r"advantages|logprobs"):
        client.forward_backward(_data(), "ppo").result()
    assert _step(client) == _step(twin)
    assert _step(client) == _step(twin)


def test_the_exported_adapter_names_every_module_it_adapts(
    server: ServerProcess, service: Any
) -> None:
    import sqlite3
    from contextlib import closing

    from safetensors import safe_open

    client = service.create_lora_training_client(MODEL, rank=4, seed=7)
    client.save_weights_for_sampler("named").result()
    with closing(sqlite3.connect(server.home / "tinkex.db")) as db:
        (folder,) = db.execute("SELECT folder FROM checkpoints WHERE name = 'named'").fetchone()
    root = server.home / "weights" / folder
    config = json.loads((root / "adapter_config.json").read_text())
    with safe_open(root / "adapter_model.safetensors", "numpy") as tensors:
        modules = {key.split(".lora_")[0].split(".")[-1] for key in tensors.keys()}  # noqa: SIM118 - safetensors' files are no mappings
    assert modules == set(config["target_modules"])
    assert modules == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head",
    }  # fmt: skip
