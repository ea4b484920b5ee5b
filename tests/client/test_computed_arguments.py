"""Arguments that a program computed, as the official client takes them: numpy's numbers, floats
without a fraction, numbers as metadata. They are sent as plain JSON."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tinkex
from support.clients import PARAMS, datum, prompt, quick_config
from support.protocol_server import ProtocolServer
from tinkex.client import arguments

COMPUTED = {"lr": 1e-4, "steps": 3, "note": None, "tags": ["a"]}


@pytest.fixture(scope="module")
def server() -> Iterator[ProtocolServer]:
    with ProtocolServer() as server:
        yield server


@pytest.fixture(scope="module")
def service(server: ProtocolServer) -> Iterator[tinkex.ServiceClient]:
    with tinkex.ServiceClient.from_config(
        quick_config(server.url), user_metadata=COMPUTED
    ) as service:
        yield service


def test_ranks_seeds_and_metadata(service: tinkex.ServiceClient, server: ProtocolServer) -> None:
    service.create_lora_training_client(
        "m",
        rank=np.int64(8),
        seed=np.int32(3),
        user_metadata=COMPUTED,
    )
    sent = server.asked("/create_model")[-1].body
    assert (sent["lora_config"]["rank"], sent["lora_config"]["seed"]) == (8, 3)
    assert sent["user_metadata"] == COMPUTED
    assert server.asked("/create_session")[-1].body["user_metadata"] == COMPUTED


def test_numbers_of_samples(service: tinkex.ServiceClient, server: ProtocolServer) -> None:
    sampler = service.create_sampling_client(base_model="m")
    counts = {"num_samples": np.int64(2), "topk_prompt_logprobs": 1.0}
    sampler.sample(prompt(1, 2), sampling_params=PARAMS, **counts).result(timeout=30)
    sent = server.asked("/asample")[-1].body
    assert (sent["num_samples"], sent["topk_prompt_logprobs"]) == (2, 1)


def test_settings_of_a_loss_and_times_to_live(
    service: tinkex.ServiceClient, server: ProtocolServer
) -> None:
    run = service.create_lora_training_client("m", rank=4.0)
    run.save_state("a", ttl_seconds=7200.0).result(timeout=30)
    assert server.asked("/save_weights")[-1].body["ttl_seconds"] == 7200
    low = {"clip_low_threshold": np.float32(0.5)}
    run.forward_backward([datum(1, 2)], "ppo", low).result(timeout=30)
    assert arguments.checked_loss("ppo", low) == {"clip_low_threshold": 0.5}


@pytest.mark.parametrize("value", [1.5, True, "8", None, float("nan"), float("inf")])
def test_what_is_no_whole_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match="rank: expected a whole number, got"):
        arguments.whole(value, "rank")


@pytest.mark.parametrize("value", [float("nan"), object(), {1}])
def test_metadata_that_json_cannot_say_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match=r"user_metadata\['a'\]"):
        arguments.check_metadata({"a": value})
