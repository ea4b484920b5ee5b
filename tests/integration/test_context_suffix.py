"""`Org/Model:peft:48` is that model with sequences of at most 48 tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tinkex
from support.embedded import embedded_server
from tinkex import types

MODEL = "tinkex/tiny-llama"
LIMITED = f"{MODEL}:peft:48"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tinkex.ServiceClient]:
    home = tmp_path_factory.mktemp("home")
    with embedded_server(home, MODEL), tinkex.ServiceClient(base_url="local") as made:
        yield made


def datum(length: int) -> types.Datum:
    tokens = [index % 100 for index in range(length)]
    inputs = {"target_tokens": tokens, "weights": [1.0] * length}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def sampled(sampler: tinkex.SamplingClient, prompt: int, tokens: int | None) -> list[int]:
    params = types.SamplingParams(max_tokens=tokens, seed=1, stop=[])
    asked = types.ModelInput.from_ints([1] * prompt)
    return sampler.sample(asked, 1, params).result().sequences[0].tokens


def test_longer_sequences_are_not_trained_on(service: tinkex.ServiceClient) -> None:
    run = service.create_lora_training_client(LIMITED, rank=4)
    run.forward_backward([datum(48)], "cross_entropy").result()
    with pytest.raises(tinkex.RequestFailedError, match="49 tokens; this model takes at most 48"):
        run.forward_backward([datum(49)], "cross_entropy").result()
    plain = service.create_lora_training_client(MODEL, rank=4)
    plain.forward_backward([datum(49)], "cross_entropy").result()


def test_prompt_and_sample_stay_within(service: tinkex.ServiceClient) -> None:
    run = service.create_lora_training_client(LIMITED, rank=4)
    saved = run.save_weights_and_get_sampling_client()
    for sampler in (service.create_sampling_client(base_model=LIMITED), saved):
        assert len(sampled(sampler, 40, 8)) == 8
        assert len(sampled(sampler, 40, None)) == 8, "what is left of the context"
        with pytest.raises(tinkex.BadRequestError, match="9 max_tokens > 48"):
            sampled(sampler, 40, 9)
    assert len(sampled(service.create_sampling_client(base_model=MODEL), 40, 9)) == 9


def test_capabilities_tell_what_may_be_asked_for(service: tinkex.ServiceClient) -> None:
    (model,) = service.get_server_capabilities().supported_models
    most = model.max_context_length
    assert model.max_training_length == most, "on a CPU, which plans no memory for it"
    with pytest.raises(tinkex.UnprocessableEntityError, match=f"at most {most} here"):
        service.create_lora_training_client(f"{MODEL}:peft:{most + 1}", rank=4)
