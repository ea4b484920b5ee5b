"""Gate 5: a sampler serves exactly the weights it was made from, and says which they are."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

import tinkex
from support.gate_data import batch, step
from support.server_process import MODEL, ServerProcess
from tinkex import types

pytestmark = pytest.mark.slow

PROMPT = types.ModelInput.from_ints(list(range(5, 40, 2)))


def _samples(sampler: Any) -> Any:
    params = types.SamplingParams(max_tokens=6, temperature=0.7, seed=4)
    result = sampler.sample(PROMPT, 2, params).result()
    return [one.tokens for one in result.sequences], np.array(
        [one.logprobs for one in result.sequences]
    )


def _same(one: Any, other: Any) -> bool:
    """The same tokens, and logprobs equal but for rounding: a cached prompt is summed otherwise."""
    return bool(one[0] == other[0] and np.abs(one[1] - other[1]).max() < 1e-4)


def test_gate_05_pinned_samplers(server: ServerProcess, service: Any) -> None:
    """Training on, saving again under another name and sampling from others at the same time change
    nothing a sampler answers; every sampler names its weights."""
    client = service.create_lora_training_client(MODEL, rank=4, seed=2)
    rest = tinkex.RestClient(base_url=server.url, api_key="tml-alice")
    made: list[tuple[Any, str, Any]] = []
    for number in range(3):
        step(client, batch(number, 4))
        path = client.save_weights_for_sampler(f"pinned-{number}").result().path
        sampler = service.create_sampling_client(model_path=path)
        made.append((sampler, path, _samples(sampler)))
        for earlier, name, answer in made:
            assert _same(_samples(earlier), answer)
            # Samplers are told apart by their id, and the id tells the weights.
            told = rest.get_sampler(earlier._sampling_session_id).result()
            assert told.model_path == name
    answers = [answer for _, _, answer in made]
    assert not any(_same(one, other) for one, other in combinations(answers, 2))
    rest.holder.close()
