"""Promises of checkpoints with the real engine: portable, exact, safe against a flipped byte."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tinkex
from support.live_server import LiveServer, live_server
from tinkex.server.engines.model_sources import default_cache, resolve

MODEL = "tinkex/tiny-qwen3"
TOKENS = list(range(65, 89))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved") / "home"


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[LiveServer]:
    with live_server(home, "--model", MODEL, "--dtype", "float32") as server:
        yield server


@pytest.fixture(scope="module")
def service(server: LiveServer) -> Iterator[tinkex.ServiceClient]:
    with tinkex.ServiceClient(base_url=server.url, api_key="tml-saved") as service:
        yield service


@pytest.fixture(scope="module")
def rest(server: LiveServer, service: tinkex.ServiceClient) -> tinkex.RestClient:
    return tinkex.RestClient(base_url=server.url, api_key="tml-saved")


def datum() -> tinkex.Datum:
    return tinkex.Datum(
        model_input=tinkex.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * (len(TOKENS) - 1)},
    )


def train(client: Any, steps: int) -> list[list[float]]:
    """The logprobs before each step."""
    seen = []
    for _ in range(steps):
        result = client.forward_backward([datum()], "cross_entropy")
        client.optim_step(tinkex.AdamParams(learning_rate=5e-3, weight_decay=0.01)).result()
        seen.append(result.result().loss_fn_outputs[0]["logprobs"].tolist())
    return seen


def logprobs(client: Any) -> list[float]:
    result = client.forward([datum()], "cross_entropy").result()
    found: list[float] = result.loss_fn_outputs[0]["logprobs"].tolist()
    return found


def test_a_resumed_run_continues_bit_for_bit(service: Any) -> None:
    first = service.create_lora_training_client(MODEL, rank=4, seed=5)
    train(first, 3)
    path = first.save_state("middle").result().path
    straight = train(first, 3)
    resumed = service.create_training_client_from_state_with_optimizer(path)
    assert train(resumed, 3) == straight
    fresh = service.create_training_client_from_state(path)
    assert train(fresh, 2) != straight[:2], "without its optimizer a run takes other steps"


def test_an_exported_adapter_loads_in_peft_and_says_the_same(
    service: Any, rest: Any, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    client = service.create_lora_training_client(MODEL, rank=4, seed=6)
    train(client, 3)
    path = client.save_weights_external("out").result().path
    fetch_all(rest, path, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    projections = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert projections | {"lm_head"} == set(config["target_modules"])
    assert config["base_model_name_or_path"] == MODEL
    folder = resolve(MODEL, default_cache({}), {}).folder
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(tmp_path)).eval()
    with torch.no_grad():
        scores = model(torch.tensor([TOKENS[:-1]])).logits[0].log_softmax(-1)
    expected = scores.gather(1, torch.tensor(TOKENS[1:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(logprobs(client)), expected, atol=1e-4, rtol=0)


def fetch_all(rest: Any, path: str, folder: Path) -> None:
    for name, url in rest.get_external_weights_urls(path).result().urls.items():
        with urllib.request.urlopen(url, timeout=30) as response:
            (folder / name).write_bytes(response.read())


def test_a_flipped_byte_is_refused_by_name_and_the_run_is_untouched(
    service: Any, home: Path
) -> None:
    client = service.create_lora_training_client(MODEL, rank=4, seed=7)
    train(client, 1)
    before_save = {folder.name for folder in (home / "weights").iterdir()}
    path = client.save_state("fragile").result().path
    (folder,) = [f for f in (home / "weights").iterdir() if f.name not in before_save]
    weights = folder / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(content)
    before = logprobs(client)
    for load in (
        lambda: service.create_training_client_from_state_with_optimizer(path).get_info(),
        lambda: service.create_training_client_from_state(path).get_info(),
        lambda: service.create_sampling_client(model_path=path),
    ):
        with pytest.raises(tinkex.TinkerError, match=r"adapter_model\.safetensors was changed"):
            load()
    assert logprobs(client) == before


def test_a_sampler_keeps_its_weights_whatever_happens_to_their_checkpoint(
    service: Any, rest: Any
) -> None:
    client = service.create_lora_training_client(MODEL, rank=4, seed=8)
    train(client, 2)
    path = client.save_weights_for_sampler("pinned").result().path
    sampler = service.create_sampling_client(model_path=path)
    prompt = tinkex.ModelInput.from_ints(TOKENS)
    scored = sampler.compute_logprobs(prompt).result()
    trained = logprobs(client)
    assert scored[1:] == pytest.approx(trained, abs=1e-4)
    train(client, 3)
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert sampler.compute_logprobs(prompt).result() == scored
    assert logprobs(client) != trained
