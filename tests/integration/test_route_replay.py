"""The server knows a sampled sequence again in training data, and has its routes replayed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tinkex
from support.embedded import embedded_server
from tinkex import types
from tinkex.engine.messages import Sample, SamplingParams, Sequence
from tinkex.server.sampling.kept_routes import KeptRoutes, digest

MODEL, ANOTHER = "tinkex/tiny-qwen3-moe", "tinkex/tiny-gpt-oss"
SHORTER = f"{MODEL}:peft:512"
PROMPT = [5, 17, 3, 99]
SHARE = "e_frac_replayed:mean"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tinkex.ServiceClient]:
    home = tmp_path_factory.mktemp("home")
    with embedded_server(home, MODEL, ANOTHER), tinkex.ServiceClient(base_url="local") as made:
        yield made


@pytest.fixture(scope="module")
def run(service: tinkex.ServiceClient) -> tinkex.TrainingClient:
    return service.create_lora_training_client(MODEL, rank=4, seed=1)


@pytest.fixture(scope="module")
def sampled(run: tinkex.TrainingClient) -> types.SampledSequence:
    sampler = run.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=12, seed=3, stop=[])
    return sampler.sample(types.ModelInput.from_ints(PROMPT), 1, params).result().sequences[0]


def datum(sequence: types.SampledSequence, loss: str, *, whole: bool = False) -> types.Datum:
    tokens = [*PROMPT, *sequence.tokens, *([1] if whole else [])]
    length, prompt = len(tokens) - 1, len(PROMPT) - 1
    after = np.arange(length) >= prompt
    inputs: dict[str, object] = {"target_tokens": tokens[1:]}
    if loss == "cross_entropy":
        inputs["weights"] = after.astype(np.float32)
    else:
        assert sequence.logprobs is not None
        given = [*([0.0] * prompt), *sequence.logprobs, *([0.0] if whole else [])]
        inputs["logprobs"] = np.asarray(given, np.float32)
        inputs["advantages"] = after.astype(np.float32)
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def share(
    run: tinkex.TrainingClient, sequence: types.SampledSequence, loss: str, whole: bool = False,
    **config: float,
) -> float:  # fmt: skip
    data = [datum(sequence, loss, whole=whole)]
    return run.forward_backward(data, loss, config or None).result().metrics.get(SHARE, 0.0)


def test_reinforcement_replays_unless_it_is_told_not_to(
    run: tinkex.TrainingClient, sampled: types.SampledSequence
) -> None:
    for loss in ("importance_sampling", "ppo", "cispo"):
        assert share(run, sampled, loss) == 1.0
    assert share(run, sampled, "ppo", replay_routes=0, clip_low_threshold=0.9) == 0.0
    assert share(run, sampled, "cross_entropy") == 0.0
    assert share(run, sampled, "cross_entropy", replay_routes=1) == 1.0
    with pytest.raises(tinkex.RequestFailedError, match="replay_routes must be 0 or 1"):
        share(run, sampled, "ppo", replay_routes=2)


def test_a_datum_that_brings_the_last_token_too_is_known(
    run: tinkex.TrainingClient, sampled: types.SampledSequence
) -> None:
    known = len(PROMPT) + len(sampled.tokens) - 1
    assert share(run, sampled, "ppo", whole=True) == pytest.approx(known / (known + 1))


def test_another_key_finds_nothing(
    service: tinkex.ServiceClient, sampled: types.SampledSequence
) -> None:
    with tinkex.ServiceClient(base_url="local", api_key="tml-somebody-else") as other:
        run = other.create_lora_training_client(MODEL, rank=4, seed=1)
        assert share(run, sampled, "ppo") == 0.0


def test_what_another_model_drew_is_routed_by_the_one_that_is_trained(
    service: tinkex.ServiceClient, run: tinkex.TrainingClient
) -> None:
    """As in distillation, where the data are the teacher's."""
    params = types.SamplingParams(max_tokens=12, seed=8, stop=[])
    prompt = types.ModelInput.from_ints(PROMPT)
    shares = []
    for name in (ANOTHER, MODEL, SHORTER):
        teacher = service.create_sampling_client(base_model=name)
        drawn = teacher.sample(prompt, 1, params).result().sequences[0]
        shares.append(share(run, drawn, "importance_sampling"))
    assert shares == [0.0, 1.0, 1.0]


def test_scoring_a_sequence_leaves_it_the_routes_of_its_sampler(
    service: tinkex.ServiceClient,
) -> None:
    """As a penalty against the reference model asks for."""
    run = service.create_lora_training_client(MODEL, rank=4, seed=2)
    learnt = types.Datum(
        model_input=types.ModelInput.from_ints([*range(40)]),
        loss_fn_inputs={"target_tokens": [*range(1, 41)], "weights": [1.0] * 40},
    )
    for _ in range(5):  # so that its routes are not the reference's any more
        run.forward_backward([learnt], "cross_entropy").result()
        run.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    sampler = run.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=30, seed=3, stop=[])
    drawn = sampler.sample(types.ModelInput.from_ints(PROMPT), 1, params).result().sequences[0]
    data = [datum(drawn, "importance_sampling")]

    def trained_on() -> list[float]:
        output = run.forward(data, "importance_sampling").result().loss_fn_outputs[0]
        return output["logprobs"].tolist()[len(PROMPT) - 1 :]

    service.create_sampling_client(base_model=MODEL).compute_logprobs(data[0].model_input).result()
    np.testing.assert_allclose(trained_on(), drawn.logprobs, atol=1e-4)


def sequence(first: int, length: int) -> Sequence:
    routes = np.full((length + 1, 2, 4), first, np.uint8)
    tokens = np.arange(first, first + length, dtype=np.int32)
    return Sequence(tokens, np.zeros(length, np.float32), "length", None, routes)


def kept(store: KeptRoutes, tenant: str, first: int, length: int) -> bool:
    tokens = np.array([7, 8, *range(first, first + length - 1)])
    return store.find(tenant, [digest(MODEL, tokens)]) is not None


def request(most: int = 300, *, scores: bool = False) -> Sample:
    params = SamplingParams(max_tokens=most)
    return Sample("op", "", np.array([7, 8], np.int32), params, prompt_logprobs=scores)


def test_what_is_kept_is_bounded_for_each_key_and_for_all() -> None:
    """A sequence of 99 takes 800 bytes."""
    store = KeptRoutes(tenant_bytes=2000, total_bytes=4000)
    for first in (1, 2, 3):
        store.keep("a", MODEL, request(), [sequence(first, 99)])
    assert [kept(store, "a", first, 99) for first in (1, 2, 3)] == [False, True, True]
    store.keep("a", MODEL, request(), [sequence(3, 99), sequence(9, 300)])
    assert store.nbytes == 1600, "the same again takes no more; what is too large is not kept"
    for tenant in ("b", "c", "d", "e"):
        store.keep(tenant, MODEL, request(), [sequence(5, 99)])
    assert store.nbytes <= 4000
    assert not kept(store, "a", 2, 99), "who has the most gives way"
    assert all(kept(store, tenant, 5, 99) for tenant in "bcde")
    assert not kept(store, "b", 3, 99), "another's"


def test_of_the_same_tokens_the_later_routes_count_but_never_those_of_a_score() -> None:
    store, name = KeptRoutes(2000, 4000), digest(MODEL, np.array([7, 8]))
    score = request(1, scores=True)

    def after(asked: Sample, expert: int) -> int:
        routes = np.full((2, 2, 4), expert, np.uint8)
        drawn = Sequence(np.zeros(1, np.int32), np.zeros(1, np.float32), "length", None, routes)
        store.keep("a", MODEL, asked, [drawn])
        found = store.find("a", [name])
        assert found is not None
        return int(found.max())

    assert [after(score, 1), after(score, 2)] == [1, 2]
    assert [after(request(), 3), after(score, 4), after(request(), 5)] == [3, 3, 5]
    assert store.nbytes == 16
