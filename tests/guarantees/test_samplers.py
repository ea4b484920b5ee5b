"""Guarantee 5: a sampler serves exactly the weights it was made from; every sample says which."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import tinkex
from support.ending import ended_well
from support.guarantee_data import batch, saved_folder, step
from support.server_process import MODEL, ServerProcess
from tinkex import types
from tinkex.server.storage import manifest

pytestmark = pytest.mark.slow

PROMPT = types.ModelInput.from_ints(list(range(5, 40, 2)))


def _sampled(sampler: Any) -> Any:
    params = types.SamplingParams(max_tokens=6, temperature=0.7, seed=4)
    return sampler.sample(PROMPT, 2, params).result()


def _samples(sampler: Any) -> Any:
    result = _sampled(sampler)
    return [one.tokens for one in result.sequences], np.array(
        [one.logprobs for one in result.sequences]
    )


def _hashed(sampler: Any) -> Any:
    """Its weights, once they have a hash."""
    while (found := _sampled(sampler).weights).digest is None:
        pass
    return found


def _same(one: Any, other: Any) -> bool:
    """The same tokens, and logprobs equal but for rounding: a cached prompt is summed otherwise."""
    return bool(one[0] == other[0] and np.abs(one[1] - other[1]).max() < 1e-4)


def test_guarantee_05_pinned_samplers(server: ServerProcess, service: Any) -> None:
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


def test_guarantee_05_every_sample_says_which_weights_made_it(
    server: ServerProcess, service: Any
) -> None:
    """By the checkpoint's name and the hash of its bytes; without a name, by the hash alone once
    the bytes are on disk, which the sampler does not wait for. The official client reads the same
    answers and does not mind."""
    base = _sampled(service.create_sampling_client(base_model=MODEL)).weights
    assert base == types.SampledWeights(MODEL)
    client = service.create_lora_training_client(MODEL, rank=4, seed=2)
    step(client, batch(1, 4))
    path = client.save_weights_for_sampler("named").result().path
    named = _sampled(service.create_sampling_client(model_path=path)).weights
    digest = manifest.verify(saved_folder(server.home, "named")).digest
    assert named == types.SampledWeights(MODEL, path, digest)
    same = _hashed(client.save_weights_and_get_sampling_client())
    assert same == types.SampledWeights(MODEL, None, digest), "the same bytes have the same hash"
    step(client, batch(2, 4))
    other = _hashed(client.save_weights_and_get_sampling_client())
    assert (other.path, other.digest != digest) == (None, True)
    assert (
        _official_tokens(server, path)
        == _samples(service.create_sampling_client(model_path=path))[0]
    )


OFFICIAL = """
import json, sys, tinker
service = tinker.ServiceClient(base_url=sys.argv[1], api_key="tml-alice")
sampler = service.create_sampling_client(model_path=sys.argv[2])
prompt = tinker.ModelInput.from_ints(json.loads(sys.argv[3]))
params = tinker.SamplingParams(max_tokens=6, temperature=0.7, seed=4)
print(json.dumps([one.tokens for one in sampler.sample(prompt, 2, params).result().sequences]))
"""


def _official_tokens(server: ServerProcess, path: str) -> Any:
    pytest.importorskip("tinker")
    asked = [sys.executable, "-c", OFFICIAL, server.url, path, json.dumps(PROMPT.to_ints())]
    done = subprocess.run(asked, stdout=subprocess.PIPE, check=False, timeout=120)
    assert ended_well(done.returncode, official=True)
    return json.loads(done.stdout)
