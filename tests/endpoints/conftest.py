"""One `tinkex serve` for all tests of the endpoints: a base model, and adapters of one key's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import tinkex
from support.live_server import LiveServer, live_server
from tinkex.server.engines.model_sources import default_cache, resolve
from tinkex.text.model_text import ModelText

MODEL = "tinkex/tiny-llama"
KEY, STRANGER = "tml-alice", "tml-bob"
LAST_DIGITS = 1e-5
"""What a sample's logprobs may differ by with its company and its way through the cache."""

QUESTION = [{"role": "user", "content": "1+1?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
REASONING, CONTENT, ARGUMENTS = "Ähm…", "Moment 😀.", '{"a": 1}'
SAID = (
    f"<think>\n{REASONING}\n</think>\n\n{CONTENT}\n"
    f'<tool_call>\n{{"name": "add", "arguments": {ARGUMENTS}}}\n</tool_call>'
)
"""What the adapter `caller` has learnt to answer the question with, given the tool."""


@dataclass(frozen=True)
class World:
    """A running server; `adapter` and `caller` are saved weights of `KEY`'s."""

    server: LiveServer
    service: tinkex.ServiceClient
    text: ModelText
    adapter: str
    caller: str

    @property
    def url(self) -> str:
        return self.server.url

    def sampler(self, model: str) -> tinkex.SamplingClient:
        """The native client of what an endpoint calls `model`."""
        if model.startswith("tinker://"):
            return self.service.create_sampling_client(model_path=model)
        return self.service.create_sampling_client(base_model=model)


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("endpoints") / "home"
    text = ModelText(resolve(MODEL, default_cache(os.environ), os.environ).folder, MODEL)
    prompt = text.chat(QUESTION, [TOOL]).tokens
    with (
        live_server(home, "--model", MODEL) as server,
        tinkex.ServiceClient(base_url=server.url, api_key=KEY) as service,
    ):
        adapter = _trained(service, "mine", text.encode("x"), text.encode("themselves"), 3)
        caller = _trained(service, "caller", prompt, text.encode(f"{SAID}<|im_end|>"), 200)
        yield World(server, service, text, adapter, caller)


def _trained(
    service: tinkex.ServiceClient, name: str, prompt: list[int], answer: list[int], steps: int
) -> str:
    """Weights that answer the prompt so, if there were steps enough."""
    training = service.create_lora_training_client(MODEL, rank=32, seed=1)
    tokens, weights = [*prompt, *answer], [0.0] * (len(prompt) - 1) + [1.0] * len(answer)
    datum = tinkex.Datum(
        model_input=tinkex.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights},
    )
    for step in range(steps):
        passed = training.forward_backward([datum], "cross_entropy")
        rate = 0.005 if step < 30 else 0.0015  # twice as much goes up and down for long
        training.optim_step(tinkex.AdamParams(learning_rate=rate)).result(timeout=60)
        if passed.result(timeout=60).metrics["loss:sum"] < 0.05:
            break
    return training.save_weights_for_sampler(name).result(timeout=60).path
