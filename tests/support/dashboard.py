"""What a dashboard is shown with: a real server, a model that learns a sentence, people who train.

Names, notes and prompts are as hostile as they can be: they must appear as they are, as text.
"""

from __future__ import annotations

import re

import numpy as np

import tinkex
from support.live_server import LiveServer

MODEL = "tinkex/tiny-llama"
HOSTILE = "<img src=x onerror=window.hacked=1>\"'</script><script>window.hacked=1</script>"
SENTENCE = "The quick brown fox jumps over the lazy dog. "
_LINK = re.compile(r"http://\S+/#invitation=\S+")


def link(server: LiveServer) -> str:
    """The one-time link that `tinkex serve` printed."""
    found = _LINK.search(server.output)
    assert found, server.output
    return found.group()


class Person:
    """Somebody who trains on a server with a key of their own."""

    def __init__(self, url: str, key: str) -> None:
        self.service = tinkex.ServiceClient(
            base_url=url, api_key=key, user_metadata={"script": HOSTILE}
        )
        self.rest = tinkex.RestClient(base_url=url, api_key=key)

    def start(self, name: str, rank: int = 4) -> tinkex.TrainingClient:
        training = self.service.create_lora_training_client(MODEL, rank=rank)
        self.rest.rename_training_run(training.model_id, name).result()
        return training

    def close(self) -> None:
        self.rest.holder.close()
        self.service.close("success").result()


def lesson(training: tinkex.TrainingClient) -> tinkex.Datum:
    """One sentence to learn."""
    tokens = training.get_tokenizer().encode(SENTENCE * 3)
    return tinkex.Datum(
        model_input=tinkex.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": np.array(tokens[1:], np.int64),
            "weights": np.ones(len(tokens) - 1, np.float32),
        },
    )


def train(training: tinkex.TrainingClient, steps: int, rate: float = 5e-3) -> None:
    """So many steps on one sentence."""
    datum = lesson(training)
    for _ in range(steps):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(tinkex.AdamParams(learning_rate=rate)).result()


def sample(training: tinkex.TrainingClient, name: str, prompt: str) -> str:
    """Save a sampler under a name and draw from it; its path."""
    path = training.save_weights_for_sampler(name).result().path
    sampler = training.create_sampling_client(path)
    tokens = training.get_tokenizer().encode(prompt)
    asked = tinkex.SamplingParams(max_tokens=48, temperature=0.8, seed=1)
    sampler.sample(tinkex.ModelInput.from_ints(tokens), 4, asked).result()
    return path
