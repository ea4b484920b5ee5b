"""Training on a sampled sequence goes where the sampler went, whatever the router says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from support.sampling import make_sampler, prompt_of, results_of, sample, tiny_decoder, tiny_folder
from support.training import call, gradient, train
from tinkex.engine.errors import UserError
from tinkex.engine.messages import CreateRun, Datum, LoraSpec, Sequence
from tinkex.engine.model.blocks.experts import Experts
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.training.trainer import Trainer

MODELS = ["tinkex/tiny-qwen3-moe", "tinkex/tiny-gpt-oss"]
PROMPT = prompt_of(1, 21)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sampled(decoder: Decoder, model: str, **asks: Any) -> Sequence:
    sampler = make_sampler(decoder, tiny_folder(model))
    command = sample("op", PROMPT, max_tokens=20, asks={"routes": True, **asks})
    (result,) = results_of(sampler, command)
    return result.sequences[0]


def other_router(decoder: Decoder) -> Decoder:
    """The same model but for its routers, whose rows are the next expert's."""
    layers = [
        replace(layer, mlp=replace(layer.mlp, router=layer.mlp.router.roll(1, 0)))
        if isinstance(layer.mlp, Experts)
        else layer
        for layer in decoder.weights.layers
    ]
    return Decoder(decoder.config, replace(decoder.weights, layers=tuple(layers)))


def datum_of(sequence: Sequence, routes: Any = None) -> Datum:
    tokens = np.concatenate([PROMPT, sequence.tokens]).astype(np.int64)
    length, prompt = len(tokens) - 1, len(PROMPT) - 1
    logprobs = np.concatenate([np.zeros(prompt), sequence.logprobs]).astype(np.float32)
    advantages = np.where(np.arange(length) >= prompt, 1.0, 0.0).astype(np.float32)
    inputs = {"target_tokens": tokens[1:], "logprobs": logprobs, "advantages": advantages}
    return Datum(tokens[:-1], inputs, routes)


def trained(decoder: Decoder, *data: Datum) -> tuple[list[Any], dict[str, float], torch.Tensor]:
    trainer = Trainer(decoder)
    trainer.create_run(CreateRun("op", "run", LoraSpec(4, seed=1)))
    (result,) = train(trainer, call("run", *data, loss="importance_sampling"))
    outputs = [np.asarray(output["logprobs"]) for output in result.outputs]
    return outputs, dict(result.metrics), gradient(trainer, "run").clone()


def test_a_sampler_tells_where_every_token_went(model: str) -> None:
    decoder = tiny_decoder(model)
    sequence = sampled(decoder, model)
    mixtures = decoder.config.mixtures
    active = next(iter(mixtures.values())).active
    assert sequence.routes is not None
    assert sequence.routes.shape == (len(PROMPT) + 20 - 1, len(mixtures), active)
    assert sampled(decoder, model, routes=False).routes is None


def test_equal_routers_replay_the_same_bits(model: str) -> None:
    """On a CPU trainer and sampler agree, so that replaying changes nothing."""
    decoder = tiny_decoder(model)
    sequence = sampled(decoder, model)
    (plain,), _, slope = trained(decoder, datum_of(sequence))
    (replayed,), metrics, same = trained(decoder, datum_of(sequence, sequence.routes))
    assert np.array_equal(plain, replayed)
    assert torch.equal(slope, same)
    assert metrics["e_frac_replayed:mean"] == 1.0


def test_a_trainer_follows_the_routes_of_a_sampler_that_decided_otherwise(model: str) -> None:
    """With the sampler's routers and the trainer's own, the same experts are used: routes are all
    that the two models differ in, and weights of choices."""
    decoder = tiny_decoder(model)
    sequence = sampled(other_router(decoder), model)
    assert sequence.routes is not None
    seen: dict[int, Any] = {}
    tokens = torch.from_numpy(datum_of(sequence).tokens)
    (plain,), _, _ = trained(decoder, datum_of(sequence))
    trainer = Trainer(decoder)
    trainer.create_run(CreateRun("op", "run", LoraSpec(4, seed=1)))
    entered = decoder.entered

    def watched(*given: Any, on_routes: Any, **rest: Any) -> Any:
        def both(layer: int, experts: torch.Tensor) -> None:
            seen[layer] = experts.clone()
            on_routes(layer, experts)

        return entered(*given, on_routes=both, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "entered", watched)
        datum = datum_of(sequence, sequence.routes)
        (result,) = train(trainer, call("run", datum, loss="importance_sampling"))
    for place, layer in enumerate(decoder.config.mixtures):
        assert np.array_equal(seen[layer].numpy(), sequence.routes[:, place]), layer
    assert len(seen[layer]) == len(tokens)
    assert not np.array_equal(plain, result.outputs[0]["logprobs"]), "routes made no difference"
    assert gradient(trainer, "run").abs().sum() > 0


def test_what_is_not_kept_is_routed_plainly_beside_what_is(model: str) -> None:
    decoder = tiny_decoder(model)
    other = sampled(other_router(decoder), model)
    assert other.routes is not None
    (alone,), _, _ = trained(decoder, datum_of(other))
    (replayed,), _, _ = trained(decoder, datum_of(other, other.routes))
    both, metrics, _ = trained(decoder, datum_of(other), datum_of(other, other.routes[:30]))
    assert np.array_equal(both[0], alone), "a neighbour's routes are nobody else's"
    assert np.array_equal(both[1][:30], replayed[:30])
    assert 0 < metrics["e_frac_replayed:mean"] < 0.5


def test_forks_and_found_prefixes_have_the_routes_of_their_prompt(model: str) -> None:
    decoder = tiny_decoder(model)
    sampler = make_sampler(decoder, tiny_folder(model))
    asks = {"routes": True}
    first = results_of(sampler, sample("a", PROMPT, num_samples=2, max_tokens=5, asks=asks))[0]
    again = results_of(sampler, sample("b", PROMPT, num_samples=2, max_tokens=5, asks=asks))[0]
    assert again.cached_tokens
    for one, two in zip(first.sequences, again.sequences, strict=True):
        assert one.routes is not None
        assert two.routes is not None
        assert np.array_equal(one.routes, two.routes)
        assert np.array_equal(one.routes[: len(PROMPT)], first.sequences[0].routes[: len(PROMPT)])


def test_routes_of_another_model_are_refused() -> None:
    decoder = tiny_decoder("tinkex/tiny-qwen3-moe")
    sequence = sampled(decoder, "tinkex/tiny-qwen3-moe")
    assert sequence.routes is not None
    for wrong in (sequence.routes[:, :1], sequence.routes + 100):
        trainer = Trainer(decoder)
        trainer.create_run(CreateRun("op", "run", LoraSpec(4, seed=1)))
        datum = datum_of(sequence, wrong)
        (outcome,) = trainer.forward_backward([call("run", datum, loss="importance_sampling")])
        assert isinstance(outcome, UserError)
